"""What a merger and the root do with the frames of their children.

- child_frames: applies frames: order, numbers, membership, frontiers
- bad_messages: the gap record for a message that nobody can use
- inbox: dedupe, order and receipts; epochs: the frames of one epoch and the meaning of its numbers
- clock_steps: how far the clock of a parent may be ahead
- children: when each child was heard, and the membership of every group
- group_membership: expected and left-out members of a group, its frontier; member: one child in one group
- line_watch: alarms about two devices with one id, and about copies
- definitions: the interface to definitions of queries
- let_go: frames that a child has deleted and a parent with an older copy of its spool waits for
- loss_records: gap records for frames that a parent cannot use or has lost
- earlier_lives: the losses of a gateway that began anew and does not know that it lived before
- repeats: rows that a child which lost its past may send a second time
- moves: leaves that change their parent
- room: limits on what one child can make its parent keep
- senders: the nodes for which a child may send
- unlisted: leaves that only a lost frame of their child listed
- serving_agreement: the queries that members serve together
"""
