"""gateway.toml as its tests have it: the smallest, and one with every table."""

from __future__ import annotations

SMALL = '[node]\nid = "g1"\n[uplink]\nbroker = "mqtt://10.0.0.1"\n'
PEM = """-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUKnI3BHi77No5YAC/1nihBZxcz5AwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFZmxlZXQwIBcNMjYxMTI3MDE1NDIxWhgPMjEyNjExMDMwMTU0
MjFaMBAxDjAMBgNVBAMMBWZsZWV0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
KRyYcHL0gTCqwCtAf8WQb6owtwm1ozRpWAk2L7hDu5e3VXkCOy0FfwyFwMjECDnM
hy3SDTsrnO1A7vn2TEVIxqNTMFEwHQYDVR0OBBYEFFGybGaeyDqU/42liB1ab4VY
xhQtMB8GA1UdIwQYMBaAFFGybGaeyDqU/42liB1ab4VYxhQtMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAK3snvrlXnc0Bm87bDnc/S3bhVKrRVE6
mpwLuxSBkUlAAiBG8WZnHWrfK22SoPB7aIzVAJBBj0ilKy2w7jw+uFVRkw==
-----END CERTIFICATE-----
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM8JI5UyfVUOifjCGImRq9Zh//ns6AzqtyW728nmSTRC ops@example"
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


def wifi(name: str = "hall", password: str = "12345678") -> str:
    return f'[network]\nwifi_ssid = "{name}"\nwifi_password = "{password}"\nwifi_country = "DE"\n'
