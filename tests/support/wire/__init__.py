"""Generated frames, broken bodies, equality of frames bit by bit, and frames as plain JSON for the vectors."""
