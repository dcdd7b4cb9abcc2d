"""What the loop of each role hears and does beyond the way up: gateways have sensors, regions have children."""
