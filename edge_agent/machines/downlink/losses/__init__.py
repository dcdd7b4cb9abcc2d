"""Handles lost frames of children, and rows that a child may send twice.

- loss_records: gap records for frames that a parent cannot use or has lost
- bad_messages: the gap record for an unreadable message
- let_go: frames that a child has deleted, but that its parent lacks after a restore of an older spool
- unlisted: leaves that were listed only in a lost frame
- retired_leaves: leaves below retired children, which another child may list as moved later
- earlier_lives: losses of a gateway that lost its spool and does not know that it lived before
- lost_pasts: children that do not know what they had sent: declares losses, finds repeats
- late_listings: leaves that a merger listed before it lost its journal, in frames behind its new birth
- lost_moves: leaves whose former parent lost its journal, and with it the report of their leave
- slow_clocks: losses that reach beyond the time of a parent whose clock is behind
- repeats: rows that a child which lost its past may send a second time
"""
