"""One MQTT connection that keeps itself connected.

- connection: connects, reads, publishes, acknowledges; link: its settings and its reports
- dial: name, TCP and TLS in a thread; backoff: pauses between attempts
- socket_stream, packets: large reads, and PUBLISH packets split off them
- paho_client: handshakes, keep-alive and publishing by paho; outgoing: publishes in flight
"""
