"""Checks a table of declared keys, and names every mistake with its place and what to do.

- checker: keys, reports, one line a problem
- value_types, quantities, composite_types: what may stand at a key, with its unit, in lists and tables
- documents: JSON or TOML to plain values, with the line of every key
- durations: numbers with a unit, to integers and back
"""
