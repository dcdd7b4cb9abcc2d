"""The Spark job.

batch_guard          leaves out records and files with which no batch can be made
prepared_batch       the decision of a batch, as far as it goes without Spark
job                  `Job`: one micro-batch; the order of its commits
possible_work        the part of a decision that can be carried out, if some of its rows cannot be made
row_sources          computes rows of results from the nearest copy of their parts
results              transforms from parts to rows of gold.results
islands              the same for sessions
upsert               rows that are revised or withdrawn
recent_parts         parts of the last batches, on the driver
slice_cache          decoded slices, on the driver; slice_cache_plan: of which plans
decision_checkpoint  the state of the decision as bytes
state_log            the state in ops.batches: whole now and then, else the input of a batch
native/              states as Spark expressions
"""
