"""The Delta tables.

tables               schemas, paths, creation, appends
durable              files of folders on the disk
torn_commits         what a power cut has torn is set aside
lease                one writer at a time
upkeep               the steps that keep the tables small while the root runs, and when they are due
expiring             which readings no result can need any more
retention            deletes these, and old rows about batches
log_files            deletes old commits of a table's log
maintain             the same while no root runs
late_and_quarantine  rows of ops.late and ops.quarantine
plugin_failures      failures of installed functions, in ops.gaps
"""
