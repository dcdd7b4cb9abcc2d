"""The commands for a fleet's machines: its certificates, brokers, image and updates, and what its nodes say.

status         nodes of a broker and their configuration
accept_loss    give up frames of a parent that will not come back
ca             the certificate authority
enrol          the certificate of a node
broker_config  the configuration of a broker
image          a configuration for the gateway image
update         another version of the agent on the image
"""
