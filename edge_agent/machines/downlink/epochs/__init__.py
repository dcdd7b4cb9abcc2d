"""The frames of children's epochs: their order, and the meaning of their numbers.

- epoch_frames: which frames of an epoch took effect, which wait, and which belong to another line
- child_epochs: all epochs of all children; ended_epochs: ended epochs, with one number each
- received_seqs: received sequence numbers; landed_ranges: those of a lander, with a bound; frames_ahead: frames that a
  lander received and the root cannot apply yet
- waiting_frames: counts and limits waiting frames
- counting: which rows of a line count
- epoch_dictionary: the meaning of an epoch's numbers; definitions_ahead: definitions in frames that wait
- flushes_ahead: flushes in frames that wait; landed_flushes: flushes that a lander received
- early_births: births that wait for an epoch before them
- renumbering: rows under the parent's own numbers
"""
