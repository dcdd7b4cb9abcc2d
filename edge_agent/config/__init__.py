"""Reads and checks settings of nodes, sensors and queries. Pure: no clock, and no I/O except reading the settings file.

checking     the checker: documents, tables of declared keys, value types; collects every mistake with its place
definitions  sensors and queries: text to frozen values and back
in_force     which definitions are in force on a node, and their numbering at a parent
node_file    the settings file of a node, and the sample that `headwater init` writes
topics       the topics of the protocol
"""
