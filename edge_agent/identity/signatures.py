"""Ed25519 signatures of an operator, made and checked with the command `openssl`.

A public key is a text of 44 characters, the base64 of its 32 bytes, so that it fits into a line of gateway.toml.
Source: RFC 8032, RFC 8410 (keys), openssl-pkeyutl(1).
"""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edge_agent.errors import ConfigError
from edge_agent.identity.openssl import openssl, openssl_agrees

ED25519: Final = bytes.fromhex("302a300506032b6570032100")  # DER of a public key, without its last 32 bytes
PUBLIC_KEY: Final = re.compile(r"[A-Za-z0-9+/]{43}=")
SIGNATURE_BYTES: Final = 64
MOST_KEY_BYTES: Final = 100_000  # of a file; a key has 119


def make_key(file: Path) -> str:
    """Write a new private key to a file that only its owner can read. Returns the public key.

    Raises: ConfigError if the file exists or cannot be written, PortError.
    """
    key = openssl("genpkey", "-algorithm", "ed25519")
    try:
        file.touch(0o600, exist_ok=False)
    except FileExistsError as err:
        raise ConfigError(f"{file} exists already; keys are never overwritten, name another file") from err
    except OSError as err:
        raise ConfigError(f"{file}: {err.strerror}") from err
    try:
        file.write_bytes(key)
    except OSError as err:
        file.unlink()  # a part of a key would pass for one that must not be overwritten
        raise ConfigError(f"{file}: {err.strerror}") from err
    return public_key(file)


def public_key(file: Path) -> str:
    """The public key of the private key in a file. Raises: ConfigError, PortError."""
    try:
        with file.open("rb") as opened:  # because openssl does not say clearly why it cannot read a file
            longer = len(opened.read(MOST_KEY_BYTES + 1)) > MOST_KEY_BYTES
    except FileNotFoundError as err:
        raise ConfigError(f"{file} does not exist; `headwater update key {file}` makes one") from err
    except OSError as err:
        raise ConfigError(f"{file}: {err.strerror}; wanted a key of `headwater update key`") from err
    words = ("pkey", "-in", str(file), "-passin", "pass:")  # a key with a password is refused, not asked for
    valid = not longer and openssl_agrees(*words, "-noout")
    found = openssl(*words, "-pubout", "-outform", "DER") if valid else b""
    if not found.startswith(ED25519):
        raise ConfigError(f"{file} is not a key of `headwater update key`, which makes one")
    return base64.b64encode(found[len(ED25519) :]).decode()


def sign(file: Path, text: bytes) -> bytes:
    """Sign a text. file: the private key. Raises: ConfigError, PortError."""
    public_key(file)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_bytes(text)
        return openssl("pkeyutl", "-sign", "-inkey", str(file), "-rawin", "-in", f"{folder}/text")


def signed(text: bytes, signature: bytes, keys: Iterable[str]) -> bool:
    """Whether one of these public keys signed the text. Raises: PortError if openssl is missing."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_bytes(text)
        (folder / "signature").write_bytes(signature)
        for key in keys:
            (folder / "key").write_bytes(ED25519 + _bytes_of(key))
            words = ("pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", f"{name}/key", "-rawin")
            if openssl_agrees(*words, "-in", f"{name}/text", "-sigfile", f"{name}/signature"):
                return True
    return False


def _bytes_of(key: str) -> bytes:
    try:
        if PUBLIC_KEY.fullmatch(key):
            return base64.b64decode(key, validate=True)
    except binascii.Error:
        pass
    raise ConfigError(f'"{key[:60]}" is not a public key; `headwater update key` prints one')
