"""Landing files in, decoded rows out.

landing_loop   lists new landing files by name and hands them to the job
intake         landing files to rows of bronze.messages, and heads of frames to the decision
decode         stored parts to windows or pieces of sessions, on executors
decode_lookup  what decoding needs of a decision: numberings of epochs, read requests, ranges
"""
