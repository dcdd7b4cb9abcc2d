"""Real faults: processes, brokers and disks as they are, and a root that reads the landing files without Spark.

- tree: gateways, mergers, a lander and brokers at their defaults, as child processes
- landed_root: the rows that follow from the landing files
- storm: `make storm`: kill -9 of every role, then a comparison with all readings
- restarts: 72 starts of a gateway without its parent, at the end of `make storm`
- root_kills: `make kills`: kill -9 of a Spark root and its JVM while it looks after its tables
- powercut: `make powercut`: traced writes, replayed up to any cut
- fuzz: `make fuzz`: bad messages at the brokers of a running tree, between its good ones
- upgrade: `make upgrade`: a running tree goes on with newer code, roots first
- powercut_root: the root's part of it: what its fsyncs leave of Delta's files
- disk_image: a folder as it may look after a power cut
- soak: `make soak`: memory, descriptors and disk of a running tree
- weather: `make weather`: all kinds of faults, drawn from a seed; then the oracle and `headwater audit`
- weather_tree, weather_faults, weather_rows: its tree, its faults, and the comparison of its rows with the readings
- weather_devices: devices whose readings nobody can read again, and what rows of them may say
- weather_definitions: queries and sensors that are published, altered and removed; what rows of them may say
- weather_tables: with `--spark`: a Spark root that is killed while it runs, its tables, and `headwater audit`
"""
