"""Landing files in, decoded rows out.

stream         the streaming query that hands new landing files to the job
intake         landing files to rows of bronze.messages, and heads of frames to the decision
decode         stored parts to windows or pieces of sessions, on executors
decode_lookup  what decoding needs of a decision: numberings of epochs, read requests, ranges
"""
