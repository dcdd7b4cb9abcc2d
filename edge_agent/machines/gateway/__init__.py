"""A gateway: readings of sensors to rows of closed slices, which machines/slicing makes.

- gateway: the machine; group_state: what it keeps of one group; source: how far one sensor is read
- held_readings, undated: readings and gap records that wait until the time is known
- silent_keys: gives back what keys took that are silent now
- gateway_standing: how far it is, and what holds it back, in words
- value_changes: changes of a sensor's value as markers
"""
