"""Headwater's agent: gateway, region and the top of the tree. docs/how-it-works.md is the map."""

__version__ = "0.1.0"
