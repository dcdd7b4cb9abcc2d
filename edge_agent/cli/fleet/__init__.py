"""Commands for the machines of a fleet: certificates, brokers, the image, updates, and the state of nodes.

status         lists the nodes of a broker and their configuration
accept_loss    gives up frames that wait for a parent which will not return
ca             runs the certificate authority
enrol          gets and renews the certificate of a node
broker_config  writes the configuration of a broker
image          puts a configuration on the gateway image
update         installs another version of the agent on the image
"""
