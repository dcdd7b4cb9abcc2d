"""Sensors and queries as people define them.

- definitions: what all have in common: id, revision, nodes; reading, writing, schemas
- sensors: the keys of every sensor; drivers: the record of a driver, and the registry; label_templates: `{topic[1]}`
- queries: the keys of a query; window_table, aggregate_entries, conditions: its parts
"""
