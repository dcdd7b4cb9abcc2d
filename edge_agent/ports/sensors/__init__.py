"""Sensors of a node: one driver per file, each with its record DRIVER (edge_agent/config/definitions/drivers.py).

- mqtt: messages of the local broker; one object for all sensors of the node
- host: the machine itself: cpu, memory, load, thermal zones
- file: a recorded file, CSV or JSON lines, replayed
- simulated: readings made up from a seed
- node_sensors: all configured sensors of a node: starts, polls, stops and retries their drivers
- file_access: which files they may read
- quality: what every driver does with raw numbers: checks, scales and counts them
- convert: payloads and columns to readings: values, times and labels
- payloads: numbers and times in JSON, CBOR and plain payloads
- filters: MQTT topic filters: which topics they match, and how several become disjoint
"""
