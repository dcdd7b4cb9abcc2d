"""Configures the machine of a flashed gateway: turns gateway.toml into the files of systemd, Mosquitto and sshd.

machine_files  computes the files: pure
first_boot     writes the files at every boot, keeps the last valid gateway.toml, and reports mistakes to people
fat            writes gateway.toml to an image or a card
mounts         finds where a card is mounted
updates/       signed updates of the agent, installed beside the copy in the image, tried first, and revocable
"""
