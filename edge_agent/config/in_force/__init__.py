"""Definitions on a running node.

registry            which definitions are in force, and what `state` reports
rejection           why a definition is not in force
capacity            how much of each limit is used
crosscheck          checks that need several definitions
unserved_report     definitions of a file that a gateway would not serve, for `check`
known_definitions   which definitions count at a parent: those that the operator published
revision_numbering  a parent numbers definitions and passes them down
"""
