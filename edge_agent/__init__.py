"""Headwater's agent: gateway, region, and the root's decisions. docs/architecture.md describes the whole.

- algebra/: readings, partials, windows and functions as values; wire/: converts them to bytes
- machines/: state machines of gateways, regions and the lander; root/: the decisions of the root
- ports/: sensors, MQTT, disk and clock; runtime/: processes that connect machines to ports
- config/: settings, sensors and queries; packages: loads functions, window types and drivers of other packages
- identity/: certificates; provisioning/: sets up the machine of a flashed gateway
- cli/: the commands; __main__: `python -m edge_agent`; demo/: `headwater demo`; recording/: replays recordings
- errors: the exceptions; log: log lines
"""

__version__ = "0.1.0"
