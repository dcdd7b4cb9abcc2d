"""Reads the tables for `headwater audit`, without a JVM.

root_book  the readings in the tables and in the last decision
"""
