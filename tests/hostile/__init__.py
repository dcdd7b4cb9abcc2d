"""What somebody may do who has the rights of one gateway, one local device, or one operator: nothing beyond them.

- test_texts: JSON, TOML, numbers and times that cost minutes or end a parser
- test_sensor_files: which files a sensor may read, and what of them is ever shown
- test_injection: an exception in any function that a message runs through; stand_ins: processes and their broker
"""
