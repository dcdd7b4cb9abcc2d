"""Pages and schemas made from the checker's own tables, so that they cannot differ from it.

- reference: the tables of docs/configure.md
- schema: schemas/*.schema.json
"""
