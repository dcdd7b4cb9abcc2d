"""`headwater demo`: runs the whole tree on one computer, kills some processes, and verifies the results.

runner             the demo from start to end
fleet_plan         nodes, sensors and queries of the demo
processes          child processes and brokers
keys               an authority, and certificates for all nodes
broker_watch       counts traffic on the brokers
dashboard          the live table
picture            draws demo.png
reference_answers  expected results, computed from the raw readings
delta_reader       reads the tables
compare            compares the tables with the expected results
"""
