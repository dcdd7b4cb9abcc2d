"""The merger of a region: merges the rows of its children and sends them to its parent.

- merger: the machine
- sent_upward: the last statements to the parent about each group; child_alarms: notes about children's epochs
- stated_ranges: the serving ranges that it states, compared with those before
- merger_standing: how far the merger is behind, and which child causes it, as text
- partial_store: open rows by plan, under the merger's own key and node numbers
- overfull: takes out rows that the parent would refuse
"""
