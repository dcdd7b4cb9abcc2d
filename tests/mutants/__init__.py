"""Single breaks of custody and completeness, each of which a test must catch (`make mutants`).

- *.toml: the mutants, one file a room: name, rule of docs/protocol.md, the text to break, the tests that must fail
- table: reads them
- overlay: a copy of the tree in which one mutant is in force
- __main__: runs all of them on all cores
"""
