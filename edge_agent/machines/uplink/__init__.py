"""Frames to the parent.

- step: everything that one commit sends
- frame_queue: epochs, publishing; pending_frames: what waits for a receipt
- outbox: receipts, another journal of the parent, another parent, quota
- parent_choice: which of several parents; former_lines: frames to those that were left
- epoch_encoder: steps to frames; frame_packer: frames within the size limit; size_bounds: bytes of their parts
- promises: frontiers and other statements at the end of a step, in as many frames as they need
- late_extents: where late rows lie, in case their frame is damaged; late_sendings: in case the parent's journal is lost
- gap_records: records in place of frames that a full spool drops, or that are given up
- journal_change: what becomes of spooled frames when the parent lost its journal
- session_hints: registers of open sessions; stated_exceptions: who is left out, as the parent has it
"""
