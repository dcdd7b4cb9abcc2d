"""The gateway: turns readings of sensors into frames of closed rows, which machines/slicing makes.

- gateway: the machine; group_state: the state of one group; group_frontier: the frontier of a group
- source: buffered readings and event time of one sensor
- held_readings, undated: readings and gap records that wait until the node's time is known
- silent_keys: frees the memory of keys without recent readings
- gateway_standing: how far the gateway is behind, and why, as text
- value_changes: changes of a sensor's value as markers
"""
