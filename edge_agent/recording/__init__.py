"""Recordings: files of readings and queries, run through the machines of the whole tree without a network.

- parser: reads the file; streams: its readings as columns; diagnostics: warns about readings that are in no result
- tree: gateways, mergers and a root in one process; schedule: splits streams into portions for the gateways
- row_rendering: rows as JSON
"""
