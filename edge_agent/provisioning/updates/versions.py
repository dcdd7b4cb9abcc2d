"""Decides which version of the agent a gateway runs. Pure; version_folder.py stores the decisions.

The copy in the image always exists and cannot be changed. An installed version runs first on trial, and is in force
once it has been healthy. A version that was started MOST_STARTS times without becoming healthy is given up: then the
previous version runs, or the copy in the image. A start is counted before it happens, so that a power cut counts too.
Only of a version in force, starts that ended in a requested stop do not count.

A spool has the format of the newest version that committed to it, and older versions refuse it. So a version is chosen
only if it can read the spool on the disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from edge_agent.errors import ConfigError

IMAGE: Final = ""  # the name of the copy in the image
MOST_STARTS: Final = 3
TRIAL_S: Final = 600.0  # a trial fails if the parent does not answer for this long
SETTLED_S: Final = 60.0  # a version in force is healthy after running for this long, even without a network
VERSION: Final = re.compile(r"\d{1,6}(\.\d{1,6}){1,3}")

SpoolForm = tuple[int, int]  # version of the file, version of the slots in it
Verdict = Literal["healthy", "unfit", "wait"]


class Installed(NamedTuple):
    """A version of the agent. spool: the format that it writes; it reads every earlier format.

    image: version of the image in which it was installed. A newer image with a newer agent is preferred.
    """

    version: str
    spool: SpoolForm
    image: str = IMAGE


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a gateway, by name; IMAGE is the copy in the image.

    current: in force. before: in force before `current`. trial: on trial, or None. chosen: started last, `starts` times
    since it was healthy. failed: given up. from_card: installed from the card's first partition, each only once.
    """

    installed: Mapping[str, Installed] = field(default_factory=dict)
    current: str = IMAGE
    before: str = IMAGE
    trial: str | None = None
    chosen: str = IMAGE
    starts: int = 0
    failed: tuple[str, ...] = ()
    from_card: tuple[str, ...] = ()


class Allowed(NamedTuple):
    """Exceptions that the operator allows.

    downgrade: an older version. again: a version that was given up. one_way: a spool format that the version in force
    cannot read.
    """

    downgrade: bool = False
    again: bool = False
    one_way: bool = False


NOTHING: Final = Allowed()


class ServiceState(NamedTuple):
    """The state of the gateway's systemd service. text: its status line. for_s: seconds since it became active.

    stopped: by request; a service that failed is about to start again.
    """

    active: bool
    text: str = ""
    for_s: float = 0.0
    stopped: bool = False


def order_of(version: str) -> tuple[int, ...]:
    """The sort key of a version. Raises: ConfigError."""
    if not VERSION.fullmatch(version):
        raise ConfigError(f'"{version}" is not a version; wanted numbers like "0.2.0"')
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


def admit(versions: Versions, new: Installed, image: Installed, allowed: Allowed = NOTHING) -> Versions:
    """Accept a new version; its trial begins at the next start. Raises: ConfigError with the reason against it."""
    versions = _without_outdated(versions, image)
    running = _of(versions, image, versions.current)
    if new.version == running.version:
        raise ConfigError(f"{new.version} is in force already")
    if new.spool < running.spool:
        raise ConfigError(f"{new.version} cannot read the spool of {running.version}, which is in force")
    if order_of(new.version) < order_of(running.version) and not allowed.downgrade:
        raise ConfigError(f"{new.version} is older than {running.version}, which is in force; --downgrade installs it")
    if new.version in versions.failed and not allowed.again:
        raise ConfigError(f"{new.version} was given up on this gateway; --again tries it once more")
    if new.spool > running.spool and not allowed.one_way:
        raise ConfigError(
            f"{new.version} writes the spool in a format that {running.version} cannot read: after its first commit "
            "there is no way back to an earlier version; --one-way installs it"
        )
    failed = tuple(each for each in versions.failed if each != new.version)
    known = {**versions.installed, new.version: new._replace(image=image.version)}
    return replace(versions, installed=known, trial=new.version, failed=failed, starts=0)


def is_news(versions: Versions, new: Installed, image: Installed) -> bool:
    """Whether to install a version found on the card: it is newer than `current`, not given up and not on trial.

    It must not have been installed from there before either: the operator may have gone back from it since.
    """
    versions = _without_outdated(versions, image)
    running = _of(versions, image, versions.current)
    known = new.version in (*versions.failed, *versions.from_card, versions.trial)
    return not known and order_of(new.version) > order_of(running.version)


def choose(versions: Versions, image: Installed, spool: SpoolForm | None, present: Collection[str]) -> Versions:
    """Choose the version to start, and count the start.

    spool: format of the spool on the disk; None if there is none or it cannot be read. present: versions with files.
    """
    known = {name: each for name, each in versions.installed.items() if name in present}
    versions = _without_outdated(_without_missing(replace(versions, installed=known)), image)
    if versions.starts >= MOST_STARTS:
        versions = give_up(versions, versions.chosen)
    good = _reading(versions, image, spool)
    wanted = [versions.trial, versions.current, versions.before, IMAGE]
    # If none of these reads the spool, only the newer version that wrote it can continue, even if it was given up.
    rest = sorted(good, key=lambda name: order_of(_of(versions, image, name).version), reverse=True)
    chosen = next((name for name in [*wanted, *rest] if name in good), IMAGE)
    return replace(versions, chosen=chosen, starts=versions.starts + 1 if chosen == versions.chosen else 1)


def stopped(versions: Versions) -> Versions:
    """Note that the chosen version ran and was stopped by request, as for a restart or a shutdown.

    In force, it has not failed: without this, a few quick restarts would give it up. A trial must prove itself, so its
    starts count however they end.
    """
    return replace(versions, starts=0) if versions.chosen == versions.current else versions


def healthy(versions: Versions) -> Versions:
    """Note that the chosen version is healthy; it is in force from now on."""
    chosen = versions.chosen
    failed = tuple(each for each in versions.failed if each != chosen)
    if chosen in (IMAGE, versions.current):
        return replace(versions, starts=0, failed=failed)
    trial = None if versions.trial == chosen else versions.trial
    before = versions.current if versions.current != chosen else versions.before
    return replace(versions, current=chosen, before=before, trial=trial, starts=0, failed=failed)


def give_up(versions: Versions, version: str) -> Versions:
    """Give up a version that failed or that the operator revokes. It is not chosen while another version can run."""
    if version == IMAGE:
        return replace(versions, starts=0)
    failed = (*(each for each in versions.failed if each != version), version)
    versions = replace(versions, failed=failed, starts=0)
    if versions.trial == version:
        return replace(versions, trial=None)
    if versions.current == version:
        return replace(versions, current=versions.before, before=IMAGE)
    return versions


def verdict(versions: Versions, service: ServiceState, waited_s: float, answered: str) -> Verdict:
    """Whether the chosen version is 'healthy' or 'unfit'; 'wait' while that is not known.

    waited_s: how long it has been observed, since it was last stopped. answered: the status line of a process whose
    parent has answered. On trial, a version must reach its parent within TRIAL_S: there should be a network, as the
    update came over it or with a person on site. In force, a version only has to run, because without a network no
    other version would do better.
    """
    if versions.chosen in (IMAGE, versions.current):
        return "healthy" if service.active and service.for_s >= SETTLED_S else "wait"
    if service.active and service.text == answered:
        return "healthy"
    return "unfit" if waited_s > TRIAL_S else "wait"


def needed(versions: Versions) -> set[str]:
    """The versions whose files must be kept."""
    names = {versions.trial, versions.current, versions.before, versions.chosen}
    return {name for name in names if name is not None and name != IMAGE}


def _of(versions: Versions, image: Installed, name: str) -> Installed:
    return versions.installed.get(name, image)


def _reading(versions: Versions, image: Installed, spool: SpoolForm | None) -> set[str]:
    """The versions that can read the spool."""
    names: Iterable[str] = (*versions.installed, IMAGE)
    return {name for name in names if spool is None or _of(versions, image, name).spool >= spool}


def _without_missing(versions: Versions) -> Versions:
    """The same state, with IMAGE in place of versions whose files are missing."""

    def there(name: str) -> str:
        return name if name in versions.installed else IMAGE

    trial = versions.trial if versions.trial in versions.installed else None
    return replace(versions, current=there(versions.current), before=there(versions.before), trial=trial)


def _without_outdated(versions: Versions, image: Installed) -> Versions:
    """The same state, with IMAGE in place of versions older than a new image (flashing keeps the data partition)."""

    def newest(name: str) -> str:
        each = _of(versions, image, name)
        outdated = order_of(image.version) > max(order_of(each.version), order_of(each.image or "0.0"))
        return IMAGE if outdated else name

    trial = versions.trial
    if trial is not None and newest(trial) == IMAGE:
        trial = None
    return replace(versions, current=newest(versions.current), before=newest(versions.before), trial=trial)
