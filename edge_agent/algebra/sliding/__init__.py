"""Overlapping windows at a constant cost per slice.

- batch: forms all windows of a period at once; two_stacks: the block scans that it uses
- incremental: forms windows step by step as time passes
- prefix_blocks: cached slices with sums per block, for the Spark root
"""
