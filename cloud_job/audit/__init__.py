"""Reads the tables for `headwater audit`, without a JVM.

root_book  counts the readings in the tables and in the last decision
"""
