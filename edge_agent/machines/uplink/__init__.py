"""Sends frames to the parent.

- step: everything that one commit sends
- frame_queue: numbers and publishes frames; pending_frames: frames without a receipt
- outbox: receipts, a new journal of the parent, a move to another parent, quota
- parent_choice: chooses one of several parents; former_lines: frames for former parents
- encoding: steps to frames within the size limit
- late_extents: times of late rows in spooled frames, if one is damaged; late_sendings: of late rows sent recently, if
  the parent loses its journal
- gap_records: records in place of frames that a full spool drops, or that are given up
- journal_change: decides about spooled frames when the parent has lost its journal
"""
