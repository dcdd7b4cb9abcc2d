"""State of machines in the slots of a spool.

- slot: one slot and its rows
- slots: every slot, its type, and the version of them all; groups in several slots
- membership_slots: memberships of a merger in several slots
- damage: what a node may use of a spool with damaged slots
- codec: typed values as plain values, and back
- append_only: a table that only grows, in slots of some entries
- paged_rows: many open rows, in slots of some keys
"""
