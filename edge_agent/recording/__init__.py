"""Recordings: readings and queries in a file, run through the machines of the whole tree without a network.

- parser: the file to values; streams: its items as columns; diagnostics: readings that are in no result
- tree: gateways, mergers and a root in one process; schedule: in which portions readings are fed
- row_rendering: rows as JSON
"""
