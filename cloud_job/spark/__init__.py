"""The Spark job.

batch_guard          leaves out what no batch can be made with
prepared_batch       the decision of a batch, as far as it goes without Spark
job                  `Job`: one micro-batch; the order of its commits
possible_work        what of a decision can be carried out, where rows of some of it cannot be made
row_sources          rows of results from where their parts are nearest
results              transforms from parts to rows of gold.results
islands              the same for sessions
upsert               rows that are revised or withdrawn
recent_parts         parts of the last batches, on the driver
slice_cache          decoded slices, on the driver; slice_cache_plan: of which plans
decision_checkpoint  the state of the decision as bytes
state_log            what a row of ops.batches says of it: whole now and then, else the input of its batch
native/              states as Spark expressions
"""
