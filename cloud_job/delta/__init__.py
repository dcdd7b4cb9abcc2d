"""The Delta tables.

tables               columns with their meaning, paths, creation, appends
driver_rows          column types for Spark and Arrow, rows made on the driver
table_folders        whether a folder has a table, what a cut creation leaves there, names of files of commits
lease                allows one writer at a time
upkeep               the steps that keep the tables small while the root runs, and when they are due
expiring             finds the readings that no result can need any more
retention            deletes these readings, and old rows about batches
vacuum               deletes files of old versions, a limited number per step
log_files            deletes old commits of a table's log
maintain             maintains the tables once, while no root runs
late_and_quarantine  rows of ops.late and ops.quarantine
plugin_failures      failures of installed functions, in ops.gaps
integrity/           keeps the tables whole: power cuts, deleted tables, changes by others
"""
