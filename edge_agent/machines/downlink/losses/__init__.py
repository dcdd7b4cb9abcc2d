"""What is lost, or may come twice, of the frames of a child.

- loss_records: gap records for frames that a parent cannot use or has lost
- bad_messages: the gap record for a message that nobody can use
- let_go: frames that a child has deleted and a parent with an older copy of its spool waits for
- unlisted: leaves that only a lost frame of their child listed
- earlier_lives: the losses of a gateway that began anew and does not know that it lived before
- lost_pasts: children that do not know what they had sent: what may be lost, what may come twice
- repeats: rows that a child which lost its past may send a second time
"""
