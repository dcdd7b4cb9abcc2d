"""The frames of one epoch of a child: their order, and what their numbers mean.

- epoch_frames: which frames took effect, which wait, and which belong to another line
- child_epochs: all epochs of all children; ended_epochs: those that have ended, of which one number is kept
- received_seqs: received sequence numbers; waiting_frames: how many wait, and the bound of it
- counting: which rows of a line count
- epoch_dictionary: the meaning of an epoch's numbers; renumbering: rows under the parent's own numbers
"""
