"""The built-in families of aggregates, one per file, each as `FAMILY`; `_FILES` of the package above lists them."""
