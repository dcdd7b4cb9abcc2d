"""Count and state windows on Spark.

ordered_windows  from readings and the states of their keys to windows and new states
reading_chunks   raw readings as chunks: one binary value per row and key
position_rows    states as rows of silver.positions
position_store   keeps states on the driver while they are few
"""
