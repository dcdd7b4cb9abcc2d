"""What people write and publish, checked: settings of a node, sensors, queries. Pure; no clock, no I/O but one file.

checking     documents, tables of declared keys, types of values; collects every mistake with its place
definitions  sensors and queries: text to frozen values and back
in_force     which definitions count on a node, and their numbering at a parent
node_file    the settings file of a node, and the one that `headwater init` writes
topics       the topics of the protocol
"""
