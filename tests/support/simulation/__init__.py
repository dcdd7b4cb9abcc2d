"""A fleet in one thread, from a seed. world: clock, network, hosts, crashes. faults: how much goes wrong. The fleets
(fleets, altered_fleets, marker_fleets, ordered_fleets) draw queries and readings and compare the rows with the oracle.
"""
