"""`headwater demo`: the whole tree on one computer; some processes are killed, and the results are verified.

- runner: the demo from start to end; fleet_plan: nodes, sensors and queries; processes: child processes and brokers
- keys: an authority and certificates for everybody
- broker_watch, dashboard, picture: traffic counters, the live table, demo.png
- reference_answers: expected results from raw readings; delta_reader: the tables; compare: both against each other
"""
