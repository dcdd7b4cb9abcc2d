"""Aggregates in Spark: native expressions where they exist, else one call of numpy per batch of windows.

plan          state columns, and expressions that combine states
lower         expressions that compute results from states
in_numpy      functions without native expressions
answers       results computed in numpy as Spark columns
column_types  Spark and Arrow types of each form of state column, and conversions
cell_arrays   cells: several arrays of numbers in one value of a column
multisets     multisets as cells
series        series as cells
"""
