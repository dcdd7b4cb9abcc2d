"""Definitions of sensors and queries.

definitions        text to a definition and back, for topics, files and recordings
queries            the keys of a query
sensors            the keys of a sensor
drivers            the record of a sensor driver, and the registry of drivers
window_table       the `window` of a query
aggregate_entries  the `aggregates` of a query
conditions         conditions on a reading: `where`, and the ends of state windows
label_templates    texts of labels with parts from a topic or payload
"""
