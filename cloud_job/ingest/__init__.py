"""From landing files to decoded rows.

landing_loop   lists new landing files by name and hands them to the job
intake         landing files to rows of bronze.messages, and heads of frames to the decision
decode         decodes stored parts to windows or pieces of sessions, on executors
decode_lookup  collects what decoding needs from a decision: numberings of epochs, read requests, ranges
"""
