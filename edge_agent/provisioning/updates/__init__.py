"""Another version of the agent beside the copy in the image, on the data partition.

versions        which version runs, and when another does instead: pure
bundle          a version as one signed file
version_folder  the folder of versions on the disk: whole after a power cut at any step
"""
