"""Who is who: certificates of nodes, and brokers that let each speak for itself only.

authority     the certificate authority of a fleet: certificates, one-time tokens, revocation (needs `cryptography`)
service       its HTTPS service: enrolment by token, renewal by certificate
device        a node's side: key and request made on the device with openssl, renewed at two thirds of its life
signatures    of an operator, for updates of the agent
openssl       the command `openssl`
broker_files  configuration and access list of Mosquitto
"""
