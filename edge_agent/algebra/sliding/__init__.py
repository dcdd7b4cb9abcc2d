"""Overlapping windows at a constant cost per slice.

- batch: all windows of a stretch of time at once; two_stacks: its block scans
- incremental: the same step by step, as time goes on
- prefix_blocks: cached slices with sums per block, for the Spark root
"""
