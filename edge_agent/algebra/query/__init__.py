"""Queries as values: their filters, groups, plans and costs.

- group_cut: how the readings of a group are cut into windows
- key: keys of readings as text; named tuples that identify a query revision, its rows and an epoch
- placement_reasons: why a query is computed at the gateway, at every tier or at the root
- planner: the plans of a group of queries
- query: sensors, queries, aggregates and groups
- row_sizes: expected and maximum bytes of a row in a frame
- where: filters as values
- where_parser: the filter language
- wire_costs: bytes that a plan sends per key
"""
