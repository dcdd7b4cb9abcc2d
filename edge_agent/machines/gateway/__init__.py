"""A gateway: readings of sensors to rows of closed slices.

- gateway: the machine; source: how far one sensor is read
- slicer: one group; plan_timeline: its plans along event time; query_validity: when each query revision is fed
- plan_interval: the interface of one plan; time_slicer, session_slicer, raw_slicer, punctuation_slicer: its kinds
- reading_filter, key_index, label_values, sorted_batch: readings on their way into slices
- standing: how far it is, and what holds it back, in words
- value_changes: changes of a sensor's value as markers
"""
