"""Recordings: readings and queries in a file, run through the machines of the whole tree without a network."""
