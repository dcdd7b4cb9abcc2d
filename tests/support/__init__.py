"""What several tests need. No test module imports another.

effort                how many examples and which seeds a test tries, by Hypothesis profile
waiting               waits for a condition
tolerance             how close floats must be
fakes                 a clock that a test sets; a real Mosquitto on a free port
algebra_strategies    Hypothesis strategies for values of the algebra
naive_root            windows from a slicer's steps, in plain loops
findings, skips       plugins of pytest: failing examples to keep; a skip is a failure in CI
published             tables of docs/configure.md and JSON Schemas, made from the checker
registries            files that the list of a registry lacks
tables_page           writes schemas/tables.md
machines              one machine on a simulated disk; a scripted child of a root or merger
simulation            random fleets with losses, delays and crashes, compared with the oracle
laws, wire, config    generated readings and partials; frames and foreign bytes; definitions and mistakes
recording             recordings drawn from a seed, with their right rows
cloud                 Spark jobs, and frames and landing files for them
ports, processes      connections and spools; processes of a tree, and clients of a broker
"""
