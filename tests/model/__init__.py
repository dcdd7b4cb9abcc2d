"""Executable model of docs/protocol.md 1 to 5, 8 and above all 3.8: one small random tree a seed, in simulated time.

rows: rows, cuts and frames. sender: the upward half of a node. gateway, merger. parent: the downward half of a node.
root: the lander and the root. world: the tree, the network and the faults. checks: what must hold.
Many seeds: `python -m tests.model SEEDS`.
"""
