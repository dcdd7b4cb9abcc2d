"""One machine on a simulated disk, a slicer beside a naive root, a scripted child, a lander whose files are written, and
a gateway whose clock is wrong.
"""
