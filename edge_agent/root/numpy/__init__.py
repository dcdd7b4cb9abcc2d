"""The numpy root: a `Work` carried out on rows in memory.

executor         `NumpyRoot`: decide, keep rows, return the rows that are new or revised
kept_rows        rows that took effect, by plan, until no window needs them
partial_index    the rows of one plan, found by time
time_windows     states of a range of windows; rolling_windows: overlapping ones, at a constant cost a slice
session_rows     rows of sessions
ordered_rows     rows of windows of positions
result_rows      the present rows: writing, revising, withdrawing
rows             `Row`, and answers made from states
"""
