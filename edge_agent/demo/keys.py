"""Certificates for the demo: an authority, and a folder with key and certificate for each name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_agent.identity.authority import Authority, write
from edge_agent.ports.mqtt.link import Link

LOOPBACK: Final = "127.0.0.1"
AUTHORITY_FILES: Final = ("ca.pem", "crl.pem")


class Keys:
    """Issues certificates as `headwater ca issue` does, each into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority.create(folder / "authority", "demo")

    def issue(self, name: str, *hosts: str, at: Path | None = None) -> Path:
        """Issue a certificate. Returns the folder with key.pem, cert.pem, ca.pem and crl.pem.

        hosts: names or addresses of a server. at: the folder, if it is not the one named like the certificate.
        """
        out = at or self._folder / name
        out.mkdir(parents=True, exist_ok=True)
        key, certificate = self._authority.key_pair(name, hosts)
        write(out / "key.pem", key, 0o600)
        write(out / "cert.pem", certificate)
        for given in AUTHORITY_FILES:
            write(out / given, (self._authority.folder / given).read_bytes())
        return out


def link_with(url: str, keys: Path, *, backoff_s: tuple[float, float] = (1.0, 60.0)) -> Link:
    """A link with the certificate in the folder `keys`. The folder's name is the client id."""
    files = {f"{name}_file": keys / f"{name}.pem" for name in ("ca", "cert", "key")}
    return Link(url, keys.name, backoff_s=backoff_s, connect_timeout_s=5.0, **files)  # type: ignore[arg-type]


def settings_lines(keys: Path) -> str:
    """The lines of [uplink] or [lower] that name the certificate files in this folder."""
    return "".join(f'{name}_file = "{keys / name}.pem"\n' for name in ("ca", "cert", "key"))
