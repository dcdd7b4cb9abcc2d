"""Readings split over nodes, partials cut at window edges, and the frames that a slicer's rows become."""
