"""What somebody may do who has the rights of one gateway, one local device, or one operator: nothing beyond them.

- test_texts: JSON, TOML, numbers and times that cost minutes or end a parser
- test_sensor_files: which files a sensor may read, and what of them is ever shown
- test_injection: an exception in any function that a message runs through; stand_ins: processes and their broker
- test_others: one gateway speaks for itself, and no row of it ends a merged one; fed_region: a merger fed with bytes
- test_fuzz: the short part of fuzz, which is `make hostile`
- test_contradictions: definitions and rows that do not fit each other
- test_starts: what kills a process again and again
- test_disk_faults: a disk that fails while a message is handled
- test_gap_floods: thousands of gap records in a frame
- test_bounds, test_bounds_of_groups: what a child can make its parent keep
- test_published, test_published_below: definitions that an operator has not published; published_queries: queries
- test_written_files: modes of what processes write
"""
