"""The root as a PySpark job over Delta tables.

ingest/        landing files to bronze.messages; decoding of stored parts on executors
spark/         the micro-batches: decide, then write results; native/: aggregates as native Spark expressions
ordered/       count and state windows, and their state in silver.positions
delta/         the tables: schemas, lease, maintenance
sql/           `headwater query`
audit/         counts the readings in the tables, for `headwater audit`
spark_session  starts the Spark session
jars           downloads and verifies Delta's jars
warmup         runs an empty batch, unless files wait for a real one
replay         runs recordings through the job
"""
