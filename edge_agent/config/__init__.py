"""Definitions and settings: text that people write, checked, to frozen values and back.

- checking/: the checker and the types of values; documents, durations: the text below them
- definitions/: sensors and queries; drivers: the registry of sensor drivers
- node_file/: the local file of a node
- in_force/: which definitions a node runs, and why not the others
- published/: JSON Schemas and the tables of docs/configure.md, made from the checker's own
- topics: every topic of the protocol
"""
