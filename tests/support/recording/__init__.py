"""Recordings drawn from a seed, by kind of window, with their right rows; hand-written probes."""
