"""Sensors of a node: one driver per file, each with its record DRIVER (edge_agent/config/definitions/drivers.py).

- mqtt: messages of the local broker; one object for all sensors of the node
- local_outages: when no connection to the local broker was up, so that readings may have been lost
- host: cpu, memory, load and thermal zones of the machine itself
- file: replays a recorded file, CSV or JSON lines
- simulated: random readings from a seed
- node_sensors: starts, polls, stops and retries the drivers of all configured sensors of a node
- driver_calls: calls of one driver, whose failure costs its own sensor only
- file_access: which files sensors may read
- quality: checks, scales and counts raw numbers, for every driver
- convert: payloads and columns to readings: values, times and labels
- payloads: parses numbers and times in JSON and plain payloads
- filters: MQTT topic filters: matching, and replacing overlapping filters by disjoint ones
"""
