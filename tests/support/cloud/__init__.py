"""Spark jobs for tests (jobs, both_roots), frames of children (child_frames, raw_frames), and what simulated fleets
sent as landing files (recorded_fleets). list_frames stands in for rows of Spark. session_rows carries out decisions on
sessions row by row. class_archive: faster starts of JVMs.
"""
