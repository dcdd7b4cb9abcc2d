"""Readings and mergeable states as columns of numpy arrays.

- arrays: types of arrays
- multisets, series: cells that hold values or readings
- partial: states by range and key; combines them and assigns them to windows
- row_splitting: splits rows that do not fit a frame
- row_validation: checks foreign rows against their plan
- segments: sums, extremes and picks over groups of rows
- sessions: joins session pieces; a store of open sessions
- store: open partials of one plan
- units: scaled integers as other units or floats
"""
