"""Readings and mergeable states as columns of numpy arrays.

- arrays: types of arrays
- cell_bytes: the memory of what cells hold
- multisets, series: columns whose cells contain values or readings
- partial: rows of states by range and key; combines rows, assigns them to windows
- row_counts: how many readings rows claim to have together
- row_splitting: splits rows that do not fit a frame
- row_validation: checks foreign rows against their plan
- segments: sums, minima, maxima and row picks per group of rows
- sessions: joins session pieces; a store of open sessions
- store: open partials of one plan
- units: scaled integers as other units or floats
"""
