"""The mergeable algebra: pure functions on frozen values, numpy over batches. No clock, no I/O, no threads.

- aggregates/: state columns, and the functions that lift, combine and lower them
- columns/: kinds of state columns
- coverage: the leaves that a window contains, and those that are missing
- frame: the values that frames, heartbeats and receipts carry
- leaf_times: a time of every leaf, shared by those of one member
- partials/: readings and states as columns, in groups, stores and sessions
- plugin_calls: guards the functions of other packages
- punctuation/: windows between markers
- query/: queries, filters, plans and their costs
- sketches/: approximate states in the formats of DataSketches
- sliding/: overlapping windows at a constant cost per slice
- span: event time, sets of edges, runs of windows
- windows/: window types
- zones: named time zones
"""
