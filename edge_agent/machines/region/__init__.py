"""A region: merges the rows of its children.

- merger: the machine
- merger_standing: how far behind it is, and which child holds it back, in words
- partial_store: open rows by plan, under the merger's own key and node numbers
"""
