"""The root as a PySpark job over Delta tables.

ingest/        landing files to bronze.messages; decoding of stored parts on executors
spark/         one micro-batch after the other: decide, write results; native/: states in Spark expressions
ordered/       windows of positions, and their state in silver.positions
delta/         the tables: schemas, lease, maintenance
sql/           `headwater query`
audit/         the readings in the tables, for `headwater audit`
spark_session  the session; jars: the jars that it needs; warmup: its first write
replay         recordings through the job
"""
