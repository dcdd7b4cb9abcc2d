"""headwater.toml, the local file of a node.

- settings: reads the file and checks its tables against each other
- node_tables: one dataclass a table, with its keys
- sample: the file that `headwater init` writes
"""
