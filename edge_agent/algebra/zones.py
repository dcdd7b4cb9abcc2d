"""Named time zones: from local date and time to event time.

The rules come from the `tzdata` package that is installed with Headwater, not from the machine: a slim image may have
none, and two nodes with rules of different years would cut days at different instants. Without that package the
machine's rules are used.
"""

from __future__ import annotations

import datetime
import functools
from typing import TYPE_CHECKING, Final

from edge_agent.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo  # imported where a zone is read: most nodes have no calendar windows

US: Final = datetime.timedelta(microseconds=1)
SECOND: Final = datetime.timedelta(seconds=1)
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@functools.cache
def names() -> frozenset[str]:
    """All zone names, for example `UTC` and `Europe/Berlin`."""
    from importlib import resources

    try:
        return frozenset(resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split())
    except (ModuleNotFoundError, FileNotFoundError):
        from zoneinfo import available_timezones

        return frozenset(available_timezones())


@functools.cache  # as many as there are names
def zone(name: str) -> ZoneInfo:
    """The rules of a zone. Raises: ConfigError for an unknown name."""
    from importlib import resources
    from zoneinfo import ZoneInfo

    if name not in names():
        raise ConfigError(f"no time zone {name!r}")
    try:
        with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (ModuleNotFoundError, FileNotFoundError):
        return ZoneInfo(name)


def instant_us(wall: datetime.datetime, zone: ZoneInfo) -> int:
    """The first instant at which clocks of the zone show this time or a later one, in us since 1970 UTC.

    wall: naive. A time that occurs twice means the first occurrence; a skipped time means the
    moment of the change. So a day begins where its date begins, also where clocks go forward at midnight.
    """
    utc = wall.replace(tzinfo=zone, fold=0).astimezone(datetime.UTC)
    if utc.astimezone(zone).replace(tzinfo=None) != wall:  # skipped: the change is not after the fold=0 time
        low = wall.replace(tzinfo=zone, fold=1).astimezone(datetime.UTC)  # clocks still show less
        while utc - low > SECOND:  # changes are at whole seconds
            middle = low + (utc - low) // 2
            middle -= datetime.timedelta(microseconds=middle.microsecond)
            middle = max(middle, low + SECOND)
            if middle.astimezone(zone).replace(tzinfo=None) >= wall:
                utc = middle
            else:
                low = middle
        utc -= datetime.timedelta(microseconds=utc.microsecond)
    return (utc - EPOCH) // US
