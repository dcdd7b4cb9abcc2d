"""Runs the command `openssl`, so that a gateway needs no Python library for keys and signatures."""

from __future__ import annotations

import subprocess

from edge_agent.errors import PortError

TIMEOUT_S = 60.0


def openssl(*words: str, stdin: bytes = b"") -> bytes:
    """Run `openssl` with arguments. Returns its output. Raises: PortError with the last line of its messages."""
    done = _run(words, stdin)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise PortError(f"openssl {words[0]}: {lines[-1]}")
    return done.stdout


def openssl_agrees(*words: str, stdin: bytes = b"") -> bool:
    """Run `openssl` with arguments. Returns whether it succeeded. Raises: PortError if it cannot be run."""
    return _run(words, stdin).returncode == 0


def openssl_if_agrees(*words: str, stdin: bytes = b"") -> bytes | None:
    """Run `openssl` with arguments. Returns its output; None if it failed. Raises: PortError if it cannot be run."""
    done = _run(words, stdin)
    return None if done.returncode else done.stdout


def _run(words: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["openssl", *words], input=stdin, capture_output=True, check=False, timeout=TIMEOUT_S)
    except FileNotFoundError as err:
        raise PortError("the command openssl is missing; apt install openssl") from err
    except subprocess.TimeoutExpired as err:
        raise PortError(f"openssl {words[0]}: no answer within {TIMEOUT_S:g} s") from err
