"""Turns steps into frames.

- epoch_encoder: the parts of a step, under the numbers of an epoch; spooled_numbers: these numbers in slots
- promises: frontiers and other statements at the end of a step, in as many frames as they need
- frame_packer: frames within the size limit; size_bounds: bytes of their parts
- session_hints: registers of open sessions known to the parent; stated_exceptions: exceptions known to the parent
"""
