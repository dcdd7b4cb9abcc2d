"""Pages and schemas made from the checker's tables, so that they cannot differ from it: `make docs` writes them.

reference  the tables of docs/configure.md
schema     JSON Schemas
"""
