"""Reads the tables for `headwater audit`, without a JVM.

root_book  what the tables and the last decision say of readings
"""
