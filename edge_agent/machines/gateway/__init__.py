"""A gateway: readings of sensors to rows of closed slices, which machines/slicing makes.

- gateway: the machine; group_state: what it keeps of one group; group_frontier: how far it may promise
- source: how far one sensor is read
- held_readings, undated: readings and gap records that wait until the time is known
- silent_keys: frees the memory of keys that are silent now
- gateway_standing: how far behind it is, and why, in words
- value_changes: changes of a sensor's value as markers
"""
