"""A region: merges the rows of its children.

- merger: the machine
- partial_store: open rows by plan, under the merger's own key and node numbers
"""
