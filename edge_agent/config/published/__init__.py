"""Generated from the checker, so that pages and schemas cannot differ from it.

reference  the tables of docs/configure.md
schema     JSON Schemas
"""
