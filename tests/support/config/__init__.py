"""Generated definitions, every mistake with its message, a registry with one sensor, queries as tables."""
