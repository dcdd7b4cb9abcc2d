"""SQL over the Delta tables, for `headwater query`.

answer     rows as plain values, printed as a table, CSV or JSON
views      the names that a statement may use: tables, and one view per query; errors for unknown names
delta_rs   runs a statement without a JVM
spark_sql  runs a statement with Spark
"""
