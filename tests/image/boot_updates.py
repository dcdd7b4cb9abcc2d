"""Updates of the agent in a gateway that runs: one that is kept, one that dies, and those that are refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import edge_agent
from edge_agent import __version__
from edge_agent.ports.service_manager import parent_answers

OWN: Final = Path(edge_agent.__file__).parent
GOOD, BAD = f"{__version__}.1", f"{__version__}.2"
DIES: Final = "    guard = Guard(quarantine_of(settings))\n"  # of cli/run.py, behind --dry-run
STATUS: Final = "headwater update status"
GATEWAY: Final = "systemctl show headwater-gateway -P ActiveState -P StatusText"


@dataclass(frozen=True)
class Bundles:
    """Signed files for a gateway that takes updates of `public`. foreign: by somebody else."""

    public: str
    good: Path
    bad: Path
    foreign: Path


def headwater(code: Path, *words: str) -> str:
    """The command, of the agent in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    command = [sys.executable, "-m", "edge_agent", *words]
    return subprocess.run(command, env=environment, cwd=code, capture_output=True, text=True, check=True).stdout


def bundles(folder: Path) -> Bundles:
    """Two versions after this one; the second starts with --dry-run only."""
    mine, other = folder / "update.pem", folder / "other.pem"
    said = headwater(OWN.parent, "update", "key", str(mine))
    headwater(OWN.parent, "update", "key", str(other))
    public = re.search(r'keys = \["(.+)"\]', said)
    assert public is not None, said
    made = {}
    for name, version, key in (("good", GOOD, mine), ("bad", BAD, mine), ("foreign", BAD, other)):
        code = folder / f"code-{name}"
        shutil.copytree(OWN, code / OWN.name, ignore=shutil.ignore_patterns("__pycache__"))
        replace(code / OWN.name / "__init__.py", f'"{__version__}"', f'"{version}"')
        if name == "bad":
            replace(code / OWN.name / "cli" / "run.py", DIES, f"    raise SystemExit(1)\n{DIES}")
        made[name] = folder / f"{name}.update"
        headwater(code, "update", "make", "--key", str(key), "--out", str(made[name]))
    return Bundles(public[1], **made)


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new))


@dataclass(frozen=True)
class Gateway:
    """run: a command there, as root. put: a file there, under /var/tmp. until, check: of the report."""

    run: Callable[[str], str]
    put: Callable[[Path], None]
    until: Callable[[str, Callable[[], object]], object]
    check: Callable[[str, object, object], None]

    def install(self, file: Path, *options: str) -> str:
        """What `headwater update install` says, with its exit code."""
        self.put(file)
        return self.run(f"headwater update install {' '.join(options)} /var/tmp/{file.name} 2>&1; echo exit $?")


def updates(gateway: Gateway, files: Bundles) -> None:
    """Raises: what `until` raises."""
    said = gateway.install(files.foreign)
    gateway.check("an update signed by another key is refused", "not signed" in said and "exit 2" in said, said)
    said = gateway.install(files.good)
    gateway.check("a signed update is installed", "exit 0" in said, said)
    gateway.until("it is kept once its parent answered", lambda: f"in force: {GOOD}" in gateway.run(STATUS))
    said = gateway.install(files.good)
    gateway.check("the version in force is not installed again", "in force already" in said, said)
    said = gateway.install(files.bad)
    gateway.check("a version that will die passes what can be known beforehand", "exit 0" in said, said)
    gateway.until("it is given up after its starts", lambda: f"given up: {BAD}" in gateway.run(STATUS))
    gateway.until("the version before serves again", lambda: parent_answers(GOOD) in gateway.run(GATEWAY))
    said = gateway.install(files.bad)
    gateway.check("a version that was given up is refused", "--again" in said and "exit 2" in said, said)
