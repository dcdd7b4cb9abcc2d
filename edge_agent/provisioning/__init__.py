"""The machine under a gateway that was flashed: gateway.toml to the files that systemd, Mosquitto and sshd read.

machine_files  which files, with what in them: pure
first_boot     applies them at every boot; keeps the last good gateway.toml; says what is wrong where people look
fat            puts gateway.toml onto an image or a card
updates/       another version of the agent beside the copy in the image, signed, on trial, with a way back
"""
