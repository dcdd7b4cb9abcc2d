"""Pages and schemas made from the checker's tables, so that they cannot differ from it: `make docs` writes them.

reference          the tables of docs/configure.md
schema             JSON Schemas
bill_of_materials  what a gateway and the cloud consist of: `make sbom`
licences           of what is installed, and which are allowed
"""
