"""State machines of nodes: they take events and return actions. Pure: no clock, no I/O, no threads.

- events: all events and all actions
- node: what gateways and mergers share: commits, frames to the parent, heartbeats
- parents: choice and change of a node's parent; node_clock: the node's time, and whether it is known
- gateway/: readings to closed slices, made in slicing/; region/: the merger; lander: frames to files at the root
- uplink/: frames to the parent; downlink/: frames from children
- checkpoint/: stores state in the slots of a spool
"""
