"""Figures of the product, never timed tests: `make bench`, `make bench ONLY=name`."""
