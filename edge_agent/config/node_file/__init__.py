"""The settings file of a node.

node_tables  its tables, keys and defaults
settings     reads and checks it
gateway_file reads and checks gateway.toml of the image: these settings, and those of the machine
sample       the commented file that `headwater init` writes
"""
