"""`headwater update`: signs versions of the agent, and installs them on the gateway image, first on trial."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent import __version__
from edge_agent.errors import ConfigError, PortError

if TYPE_CHECKING:
    from edge_agent.provisioning.updates.version_folder import VersionFolder
    from edge_agent.provisioning.updates.versions import Installed, ServiceState, SpoolForm

HELP = (
    "Sign a version of the agent, and install it on gateways that run the image. A new version stays if it reaches its "
    "parent within ten minutes; else the version before it, or the copy in the image, runs again."
)
EXAMPLES = """\
  headwater update key update.pem                         # once; prints the table [update] for gateway.toml
  headwater update make --key update.pem                  # of this version: headwater-0.2.0.update
  scp headwater-0.2.0.update root@press-1:/var/tmp/
  ssh root@press-1 headwater update install /var/tmp/headwater-0.2.0.update
  ssh root@press-1 headwater update status
"""
IMAGE_TOOLS: Final = Path("/usr/lib/headwater-image")  # only the gateway image has this folder
FOLDER: Final = Path("/var/lib/headwater-update")
CODE: Final = Path("/run/headwater-agent/code")  # link to the chosen version; no link: the copy in the image
KEYS: Final = Path("/run/headwater/update-keys")
SETTINGS: Final = Path("/etc/headwater/headwater.toml")
SPOOL: Final = Path("/var/lib/headwater/spool.db")
USER: Final[str | None] = "headwater"
UNIT: Final = "headwater-gateway.service"
WATCHER: Final = "headwater-trial.service"
EVERY_S: Final = 2.0  # interval at which `watch` looks at the service
REHEARSAL_S: Final = 180.0  # time limit of a command run as the gateway's user
SYSTEMD_S: Final = 60.0  # time limit of a command of systemd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    key = verbs.add_parser("key", help="make a key to sign updates with")
    key.add_argument("key", type=Path, metavar="FILE")
    make = verbs.add_parser("make", help="write this version of the agent as a signed file")
    make.add_argument("--key", type=Path, required=True, metavar="FILE", help="key of `headwater update key`")
    make.add_argument("--out", type=Path, metavar="FILE", help="(headwater-VERSION.update)")
    install = verbs.add_parser("install", help="on the gateway: check a signed file, install it, start it on trial")
    install.add_argument("file", type=Path, metavar="FILE")
    install.add_argument("--downgrade", action="store_true", help="allow a version older than the one in force")
    install.add_argument("--again", action="store_true", help="allow a version that was given up here")
    install.add_argument("--one-way", action="store_true", help="allow a version whose spool no earlier one reads")
    install.add_argument("--if-new", action="store_true", help="do nothing if it was installed or given up")
    verbs.add_parser("status", help="on the gateway: which versions there are, and which runs")
    verbs.add_parser("back", help="on the gateway: go back to the version before")
    verbs.add_parser("choose", help="on the gateway, before each start: count the start and choose the version")
    verbs.add_parser("watch", help="on the gateway: keep or give up the version that was started")
    form = verbs.add_parser("spool-form", help="on the gateway: print the form of a spool")
    form.add_argument("spool", type=Path)


def main(args: argparse.Namespace) -> int:
    """Run one of its commands. Raises: ConfigError, PortError."""
    if args.what == "key":
        from edge_agent.identity.signatures import make_key

        print(f'[update]\nkeys = ["{make_key(args.key)}"]')
        return 0
    if args.what == "make":
        return _make(args.key, args.out)
    if args.what == "spool-form":
        from edge_agent.cli.support.spool_form import form_of

        print(*(form_of(args.spool) or ()))
        return 0
    if not IMAGE_TOOLS.is_dir():
        raise ConfigError(
            f"`headwater update {args.what}` is for gateways that run the gateway image, "
            "and this machine does not; run it there"
        )
    from edge_agent.provisioning.updates.version_folder import VersionFolder

    os.umask(0o022)  # so that the gateway's user can read the files that root writes here
    try:
        return {"install": _install, "status": _status, "back": _back, "choose": _choose, "watch": _watch}[args.what](
            VersionFolder(FOLDER), args
        )
    except OSError as err:
        raise PortError(f"{err.filename or 'the disk'}: {err.strerror}") from err


def own() -> Installed:
    """The version of the running code. On a gateway this is the copy in the image."""
    from edge_agent.cli.support.spool_form import OWN
    from edge_agent.provisioning.updates.versions import Installed

    return Installed(__version__, OWN)


def _make(key: Path, out: Path | None) -> int:
    import edge_agent
    from edge_agent.identity.signatures import sign
    from edge_agent.provisioning.updates.bundle import pack

    about = own()
    payload = pack(Path(edge_agent.__file__).parent, about.version, about.spool, (3, 11), lambda text: sign(key, text))
    file = out or Path(f"headwater-{about.version}.update")
    try:
        file.write_bytes(payload)
    except OSError as err:
        raise PortError(f"{file}: {err.strerror}") from err
    print(f"{file}: version {about.version}, {len(payload) / 1e6:.1f} MB")
    return 0


def _install(store: VersionFolder, args: argparse.Namespace) -> int:
    from edge_agent.identity.signatures import signed
    from edge_agent.provisioning.updates.bundle import MOST_BYTES, unpack
    from edge_agent.provisioning.updates.versions import Allowed, admit, is_news

    try:
        keys = KEYS.read_text().split()
    except FileNotFoundError as err:
        raise ConfigError(
            "gateway.toml has no table [update], so this gateway refuses updates; `headwater update key` prints one"
        ) from err
    with args.file.open("rb") as file:
        payload = file.read(MOST_BYTES + 1)
    bundle = unpack(payload[:MOST_BYTES], lambda text, signature: signed(text, signature, keys))
    new = bundle.manifest.installed()
    if sys.version_info < bundle.manifest.python:
        least = ".".join(str(number) for number in bundle.manifest.python)
        raise ConfigError(f"{new.version} needs Python {least}: flash a newer image")
    allowed = Allowed(args.downgrade, args.again, args.one_way)
    with store.locked():
        store.sweep()
        versions = store.read()
        if args.if_new and not is_news(versions, new, own()):
            print(f"{new.version}: nothing new")
            return 0
        admit(versions, new, own(), allowed)
        store.prune(versions)
        store.add(bundle)
    try:  # without the lock: this may take longer than systemd waits for a start, which needs the lock
        _rehearse(store.path(new.version))
    except BaseException as err:
        with store.locked():
            versions = store.read()
            if versions.trial == new.version:  # it replaced the files of the trial
                versions = replace(versions, trial=None)
            if args.if_new and isinstance(err, ConfigError):  # else it would be unpacked again at every boot
                versions = replace(versions, failed=(*versions.failed, new.version))
            store.prune(versions)
        raise
    with store.locked():
        if new.version not in store.present():
            raise PortError(f"{new.version}: another `headwater update` ran meanwhile; run this again")
        versions = admit(store.read(), new, own(), allowed)
        if args.if_new:
            versions = replace(versions, from_card=(*versions.from_card, new.version))
        store.write(versions)
    print(f"{new.version} is installed, on trial; `headwater update status` shows the result")
    if not args.if_new:  # --if-new is used at boot, before the gateway starts
        _systemctl("restart", "--no-block", UNIT)
    return 0


def _rehearse(folder: Path) -> None:
    """Check that the new version starts on this machine and accepts the settings. Raises: ConfigError."""
    command = [sys.executable, "-m", "edge_agent", "run", "--dry-run", str(SETTINGS)]
    if not SETTINGS.exists():
        command[-3:] = ["--version"]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = _as_user(command, environment, folder)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-3:] or ["it printed nothing"]
        raise ConfigError(f"the new version does not start here, and was not installed: {' | '.join(lines)}")


def _status(store: VersionFolder, args: argparse.Namespace) -> int:
    versions = store.read()
    names = {"in force": versions.current, "before it": versions.before, "started last": versions.chosen}
    print(f"image: {own().version}")
    for what, name in names.items():
        print(f"{what}: {name or 'the copy in the image'}")
    if versions.trial is not None:
        print(f"on trial: {versions.trial}, {versions.starts} starts so far")
    if versions.failed:
        print(f"given up: {' '.join(versions.failed)}")
    return 0


def _back(store: VersionFolder, args: argparse.Namespace) -> int:
    from edge_agent.provisioning.updates.versions import IMAGE, choose, give_up

    with store.locked():
        versions = store.read()
        leaves = versions.current if versions.trial is None else versions.trial
        if leaves == IMAGE:
            raise ConfigError("the copy in the image is in force; there is no version before it")
        after = give_up(versions, leaves)
        if choose(after, own(), _spool_form(), store.present()).chosen == leaves:
            raise ConfigError(f"only {leaves} can read the spool of this gateway: there is no way back from it")
        store.write(after)
    _systemctl("restart", "--no-block", UNIT)
    print(f"{leaves} is given up; {after.current or 'the copy in the image'} starts")
    return 0


def _choose(store: VersionFolder, args: argparse.Namespace) -> int:
    from edge_agent.provisioning.updates.versions import IMAGE, choose, stopped

    with store.locked():
        store.sweep()
        before = stopped(store.read()) if store.was_stopped() else store.read()
        forms = {own().spool, *(each.spool for each in before.installed.values())}
        spool = _spool_form() if len(forms) > 1 else None  # None: all versions have the same form
        versions = choose(before, own(), spool, store.present())
        try:
            store.write(versions)  # count the start before it happens, in case the power fails during it
            store.forget_stop()
        except OSError as err:  # a full disk, say: a version in force starts uncounted, a trial only if it must
            print(f"headwater: the start is not counted: {err.filename}: {err.strerror}", file=sys.stderr)
            versions = choose(replace(before, trial=None), own(), spool, store.present())
        store.point(versions.chosen, CODE)
    for gone in versions.failed:
        if gone not in before.failed:
            print(f"headwater: version {gone} failed and is given up", file=sys.stderr)
    print(f"headwater: start {versions.starts} of {versions.chosen or f'{__version__}, the copy in the image'}")
    if versions.chosen != IMAGE:
        _systemctl("start", "--no-block", WATCHER)
    return 0


def _watch(store: VersionFolder, args: argparse.Namespace) -> int:
    """Observe the gateway until the version that was started is kept or given up."""
    from edge_agent.ports.service_manager import parent_answers
    from edge_agent.provisioning.updates.versions import IMAGE, give_up, healthy, verdict

    chosen, since_s = store.read().chosen, time.monotonic()
    while True:
        versions = store.read()
        if versions.chosen == IMAGE:
            return 0
        service = _service()
        if versions.chosen != chosen or service.stopped:  # else a gateway that somebody stopped would be started again
            chosen, since_s = versions.chosen, time.monotonic()
        found = verdict(versions, service, time.monotonic() - since_s, parent_answers(chosen))
        if found != "wait":
            with store.locked():
                versions = store.read()
                if versions.chosen == chosen:
                    store.prune(healthy(versions) if found == "healthy" else give_up(versions, chosen))
            print(f"headwater: version {chosen} is {'well, and in force' if found == 'healthy' else 'given up'}")
            if found == "unfit":
                _systemctl("restart", "--no-block", UNIT)
            return 0
        time.sleep(EVERY_S)


def _service() -> ServiceState:
    """The state of the gateway's service, from systemd."""
    from edge_agent.provisioning.updates.versions import ServiceState

    names = ("ActiveState", "StatusText", "ActiveEnterTimestampMonotonic")
    printed = _systemctl("show", UNIT, f"--property={','.join(names)}")
    shown = dict(line.partition("=")[::2] for line in printed.splitlines())
    since_us = int(shown.get("ActiveEnterTimestampMonotonic") or 0)
    for_s = time.clock_gettime(time.CLOCK_MONOTONIC) - since_us / 1e6
    active = shown.get("ActiveState")
    return ServiceState(active == "active", shown.get("StatusText", ""), for_s, stopped=active == "inactive")


def _spool_form() -> SpoolForm | None:
    """The form of the spool; None if it cannot be read. Read as the gateway's user, because SQLite may create files
    beside the database.
    """
    done = _as_user([sys.executable, sys.argv[0], "update", "spool-form", str(SPOOL)], os.environ, Path("/"))
    numbers = [int(word) for word in done.stdout.split() if word.isdecimal()]
    return (numbers[0], numbers[1]) if done.returncode == 0 and len(numbers) == 2 else None


def _as_user(command: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as the gateway's user, if this process is root. Raises: PortError if it takes too long."""
    user, groups = (USER, list[str]()) if USER and os.geteuid() == 0 else (None, None)
    try:
        return subprocess.run(
            command,
            user=user,
            group=user,
            extra_groups=groups,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=REHEARSAL_S,
        )
    except subprocess.TimeoutExpired as err:
        raise PortError(f"{' '.join(command[1:])}: no answer within {REHEARSAL_S:g} s") from err


def _systemctl(*words: str) -> str:
    try:
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False, timeout=SYSTEMD_S)
    except subprocess.TimeoutExpired as err:
        raise PortError(f"systemctl {words[0]}: no answer within {SYSTEMD_S:g} s") from err
    if done.returncode:
        raise PortError(f"systemctl {words[0]}: {done.stderr.strip()}")
    return done.stdout
