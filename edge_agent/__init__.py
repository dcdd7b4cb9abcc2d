"""Headwater's agent: gateway, region and the top of the tree. The map is docs/architecture.md.

- algebra/: readings, partials, windows and functions as values; wire/: these as bytes
- machines/: what gateways, regions and the lander decide; root/: what the root decides
- ports/: sensors, MQTT, disk and clock; runtime/: the processes that connect machines to ports
- config/: settings, sensors and queries; packages: loads those that other packages bring
- identity/: certificates; provisioning/: the machine of a flashed gateway
- cli/: the commands; __main__: `python -m edge_agent`; demo/: `headwater demo`; recording/: recordings
- errors: the four errors; log: log lines
"""

__version__ = "0.1.0"
