"""The algebra in Spark: states combine in the engine wherever it can, else in one call of numpy a batch of windows.

- plan: state columns and how they combine; lower: states to answers
- in_numpy: members of the registry without native expressions; answers: numpy's answers as Spark columns
- column_types: how each form of columns crosses Spark; cell_arrays, multisets, series: those that cross as cells
"""
