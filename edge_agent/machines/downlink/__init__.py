"""What a merger and the root do with the frames of their children.

- child_frames: applies frames: order, numbers, membership, frontiers
- inbox: dedupe, order and receipts; epochs: the frames of one epoch and the meaning of its numbers
- losses: what is lost, or may come twice, of the frames of a child
- clock_steps: how far the clock of a parent may be ahead
- children: when each child was heard, and the membership of every group
- group_membership: expected and left-out members of a group, its frontier; member: one child in one group
- line_watch: alarms about two devices with one id, and about copies
- definitions: the interface to definitions of queries
- moves: leaves that change their parent
- room: limits on what one child can make its parent keep
- senders: the nodes for which a child may send
- serving_agreement: the queries that members serve together
"""
