"""gateway.toml as its tests have it: the smallest, and one with every table."""

from __future__ import annotations

SMALL = '[node]\nid = "g1"\n[uplink]\nbroker = "mqtt://10.0.0.1"\n'
PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9 ops@example"
WHOLE = f"""
[node]
id = "g1"
[uplink]
broker = "mqtts://broker.example"
parent = "region-1"
[enrol]
url = "https://ca.example:8443"
token = "0123456789abcdef"
ca = '''
{PEM}'''
[network]
address = "192.168.1.20/24"
router = "192.168.1.1"
dns = ["192.168.1.1", "9.9.9.9"]
wifi_ssid = "hall; 7"
wifi_password = ' back\\slash and "quote"'
wifi_country = "DE"
[time]
servers = ["ntp.example", "192.168.1.1"]
[ssh]
keys = ["{KEY}"]
[local_broker]
password = "Sensors-1234"
"""
