"""Identity of nodes: their certificates, and brokers that let each node publish only under its own id.

- authority: the certificate authority of a fleet: certificates, one-time tokens, revocation (needs `cryptography`)
- service: the HTTPS service of the authority: enrolment by token, renewal by certificate
- device: a node's side of enrolment and renewal
- signatures: signatures of an operator, for updates of the agent
- openssl: runs the command `openssl`
- broker_files: configuration and access list of Mosquitto
"""
