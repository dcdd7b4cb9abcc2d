"""Keeps the tables whole: through power cuts, deleted tables, and changes by others. In folders of this machine.

durable           makes the files of tables durable
durable_versions  notes which version of each table is durable
torn_commits      renames commits that a power cut has damaged
foreign_commits   notices commits of somebody else that change rows
deleted_tables    refuses tables of which one was deleted; on object stores and volumes too
"""
