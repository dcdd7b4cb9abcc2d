"""Turns readings of one group into rows of slices, windows, sessions and markers.

- slicer: one group; plan_timeline: its plans along event time; query_validity: event time of each query revision
- plan_interval: base class of the slicers of one plan: time_slicer, session_slicer, raw_slicer, punctuation_slicer
- reading_filter, key_index, label_values, sorted_batch: prepare readings for slicing
"""
