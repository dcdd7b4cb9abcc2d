"""`headwater demo`: the whole tree on one machine, some of it killed, its answers compared with the truth."""
