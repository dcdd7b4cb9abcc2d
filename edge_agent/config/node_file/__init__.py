"""The settings file of a node.

node_tables  its tables, keys and defaults
settings     reads and checks it
sample       the commented file that `headwater init` writes
"""
