"""The built-in families of aggregates. Each file defines a `FAMILY`; aggregates/__init__.py lists the files."""
