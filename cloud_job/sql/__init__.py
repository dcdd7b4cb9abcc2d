"""SQL over the Delta tables, for `headwater query`.

answer     rows as plain values; printed as a table, CSV or JSON
views      the names that a statement may use: tables, one view per query; errors with the nearest name
delta_rs   the engine without a JVM
spark_sql  the same through Spark
"""
