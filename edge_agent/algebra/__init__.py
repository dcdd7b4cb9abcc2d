"""The mergeable algebra: pure functions on frozen values, numpy over batches. No clock, no I/O, no threads.

- aggregates/: state columns, and the functions that lift, combine and lower them
- built_in: loads the members of the registries
- columns/: kinds of state columns
- coverage: the leaves that the row of a window contains, and the missing ones
- earliest_start: of late rows and gap records, as one number
- frame: the contents of frames, heartbeats and receipts
- gap_scope: which groups a gap record concerns
- leaf_times: a time for every leaf, stored compactly
- partials/: readings and states as columns, in groups, stores and sessions
- plugin_calls: guards calls of other packages
- punctuation/: windows between markers
- query/: queries, filters, plans and their costs
- sketches/: approximate states in the formats of DataSketches
- sliding/: overlapping windows at a constant cost per slice
- span: sets of window edges, runs of windows
- text_shares: texts of several senders, each within its share
- windows/: window types
- zones: named time zones
"""
