"""Receives and applies the frames of children, at a merger and at the root.

- child_frames: applies frames: order, numbers, membership, frontiers
- inbox: duplicates, order and receipts; epochs: the frames of one epoch and the meaning of its numbers
- losses: gap records for lost frames of children, and rows that a child may send twice
- clock_steps: how far the clock of a parent may be ahead
- children: when each child was heard, and the membership of every group
- group_membership: expected and left-out members of a group, its frontier; member: one child in one group
- line_watch: alarms about two devices with one id, and about restored copies
- definitions: the interface to definitions of queries
- moves: leaves that move to another parent
- room: limits on what one child can make its parent store
- senders: the nodes for which a child may send
- serving_agreement: the queries that members serve together; awaited_servers: whom they wait for across groups
"""
