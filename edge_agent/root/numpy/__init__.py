"""The numpy root: executes a `Work` on rows in memory.

executor         `NumpyRoot`: decide, keep rows, return the rows that are new or revised
kept_rows        rows that took effect, by plan, until no window needs them
partial_index    the rows of one plan, found by time
time_windows     states of a range of windows; rolling_windows: overlapping windows at a constant cost per slice
session_rows     rows of sessions
ordered_rows     rows of windows of positions
result_rows      the present rows: writing, revising, withdrawing
rows             `Row`, and results computed from states
"""
