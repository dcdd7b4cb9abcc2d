"""Another version of the agent beside the copy in the image, on the data partition.

versions  which one runs, and when another does instead: pure
bundle    a version as one signed file
store     the folder of versions and what is known of them: whole after a power cut at any step
"""
