"""One machine on a simulated disk, a slicer beside a naive root, a scripted child, a lander whose files are written, a
gateway whose clock is wrong.
"""
