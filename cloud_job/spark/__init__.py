"""The Spark job.

batch_guard          leaves out records and files that make a batch fail
prepared_batch       the part of a batch that needs no Spark: the decision
job                  `Job`: one micro-batch; the order of its commits
read_files           which landing files were read, and when they are deleted
possible_work        leaves out the parts of a decision whose rows cannot be computed
row_sources          computes rows of results from parts on the driver or in the table
results              transforms parts to rows of gold.results
islands              transforms pieces of sessions to rows of gold.results
upsert               replaces and withdraws rows of gold.results
recent_parts         keeps the parts of the last batches on the driver
slice_cache          keeps decoded slices on the driver
slice_cache_plan     chooses the plans whose slices are kept
decision_checkpoint  the state of the decision as bytes
state_log            stores in ops.batches now and then the whole state, else the input of a batch
native/              aggregates as native Spark expressions
"""
