"""The settings file of a node.

node_tables  the tables, keys and defaults of the file
settings     reads and checks the file
gateway_file reads and checks gateway.toml of the image: the same settings, and those of the machine
sample       the commented file that `headwater init` writes
"""
