"""Machines: events in, actions out. Pure: no clock, no I/O, no threads.

- events: everything that can happen to a machine, and everything it can ask for
- node: what gateways and mergers share: commits, frames to the parent, heartbeats
- parents: which parent a node sends to; node_clock: what time it is, and whether that is known
- gateway/: readings to closed slices, made in slicing/; region/: the merger; lander: frames to files at the root
- uplink/: frames to the parent; downlink/: frames from children
- checkpoint/: state in the slots of a spool
"""
