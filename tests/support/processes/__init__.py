"""Node processes with a plain-Python root above them; clients of their brokers."""
