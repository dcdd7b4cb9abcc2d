"""One machine on a simulated disk, a slicer beside a naive root, a scripted child."""
