"""Readings of one group into rows of slices, windows, sessions and markers.

- slicer: one group; plan_timeline: its plans along event time; query_validity: when each query revision is fed
- plan_interval: the interface of one plan; time_slicer, session_slicer, raw_slicer, punctuation_slicer: its kinds
- reading_filter, key_index, label_values, sorted_batch: readings on their way into slices
"""
