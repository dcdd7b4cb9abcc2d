"""Stores the state of machines in the slots of a spool.

- slot: one slot and its rows
- slots: every slot with its type, and their common version; the slots of a group
- membership_slots: the slots of a merger's memberships
- damage: decides which slots of a damaged spool a node may use
- codec: converts typed values to plain values, and back
- append_only: stores a table that only grows, in slots of some entries
- paged_rows: stores many open rows, in slots of some keys
"""
