"""Sends frames to the parent.

- step: everything that one commit sends
- frame_queue: numbers and publishes frames; pending_frames: frames without a receipt
- outbox: receipts, a new journal of the parent, a move to another parent, quota
- parent_choice: chooses one of several parents; former_lines: frames for former parents
- epoch_encoder: steps to frames; frame_packer: frames within the size limit; size_bounds: bytes of their parts
- promises: frontiers and other statements at the end of a step, in as many frames as they need
- late_extents: times of late rows in spooled frames, if one is damaged; late_sendings: of late rows sent recently, if
  the parent loses its journal
- gap_records: records in place of frames that a full spool drops, or that are given up
- journal_change: decides about spooled frames when the parent has lost its journal
- session_hints: registers of open sessions known to the parent; stated_exceptions: exceptions known to the parent
"""
