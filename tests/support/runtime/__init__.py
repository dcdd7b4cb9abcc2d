"""Loops of gateway, region and lander without a broker and with a clock that a test sets."""
