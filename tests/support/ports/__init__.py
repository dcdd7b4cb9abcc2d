"""Connections at a real broker, a spool, and the hub of MQTT sensors without a broker."""
