"""A region: merges the rows of its children.

- merger: the machine
- sent_upward: what its parent knows of each group; child_alarms: notes about the lines of children
- merger_standing: how far behind it is, and which child holds it back, in words
- partial_store: open rows by plan, under the merger's own key and node numbers
"""
