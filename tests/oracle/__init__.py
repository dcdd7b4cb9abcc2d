"""The right answers, computed from all readings in plain Python. Shares only value types with the product.

central_computer      every reading kept and sorted; calls the files below
time_windows, marker_windows, ordered_windows    which readings are in a window, by type
functions             the aggregates
member_itself         for a registry member without an independent answer: the member over all readings at once
"""
