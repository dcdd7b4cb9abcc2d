"""Windows of positions on Spark.

ordered_windows  chunks of readings and the states of their keys to windows and new states
reading_chunks   raw readings as chunks, one per row and key
position_rows    the rows of silver.positions
position_store   states on the driver while they are few
"""
