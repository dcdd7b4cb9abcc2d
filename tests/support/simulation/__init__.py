"""A fleet in one thread, from a seed, compared with the oracle. `python -m tests.support.simulation` runs many.

failpoints    the kinds of faults by name; which of them the gate leaves out, and why
faults        how likely faults are in the fleets of the tests
world         time and nodes: machines in the real executor, crashes between any two actions
network       messages under way, as bytes
spools        a node's disk in memory, as bytes of the real codec
trees         trees of up to four tiers, drawn small; verdict: whether their rows are right
lives         what gateways read before they lost their spools, and who could know of it
root_host     lander and numpy root
limits        limits of the protocol that a seed draws small
fleets        trees, queries and readings; altered_fleets, marker_fleets, ordered_fleets: of other kinds
programme     what a seed draws; runs and shrinks it
large         ten thousand gateways below a hundred mergers: exact, and what a node costs; cost_plot draws it
steady_gateways: stand-ins for the gateways there that do not fail
"""
