"""Single breaks of custody and completeness, each of which a test must catch (`make mutants`).

- *.toml: the mutants, one file a room: name, rule of docs/protocol.md, the text to break, the tests that must fail
- table: reads them
- overlay: a copy of the tree in which one mutant is in force
- worker: the process of a copy, which collects the tests once and runs each mutant in a fork
- in_memory: puts a break into functions that are imported already
- __main__: runs all of them on all cores
"""
