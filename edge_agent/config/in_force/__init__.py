"""Definitions on a running node.

registry            decides which definitions are in force, and writes `state`
rejection           the reason why a definition is not in force
capacity            counts how much of each limit is used
crosscheck          checks that need several definitions
unserved_report     finds definitions of a file that a gateway would not serve, for `check`
known_definitions   decides which definitions of queries are valid at a parent
revision_numbering  numbers definitions at a parent and passes them down
"""
