"""Forms windows between markers.

- marker_merge: merges the markers of all nodes into one stream, at the root
- markers: markers, the keys of their rows, and the windows between the markers of one stream
"""
