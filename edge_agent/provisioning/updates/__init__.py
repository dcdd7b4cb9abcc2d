"""Updates of the agent: other versions on the data partition, beside the copy in the image.

versions        decides which version runs: pure
bundle          a version as one signed file
version_folder  the folder of versions on the disk, consistent after a power cut at any step
"""
