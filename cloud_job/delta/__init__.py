"""The Delta tables.

tables               schemas, paths, creation, appends
durable              files of folders on the disk
torn_commits         what a power cut has torn is set aside
lease                one writer at a time
maintain             compaction, old versions, expiry
late_and_quarantine  rows of ops.late and ops.quarantine
plugin_failures      failures of installed functions, in ops.gaps
"""
