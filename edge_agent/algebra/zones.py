"""Named time zones: converts local dates and times to event time.

The rules come from the `tzdata` package that is installed with Headwater: a slim image may have no rules, and two
machines with rules of different years would cut days at different instants. The machine's rules are used only if the
package is missing.
"""

from __future__ import annotations

import datetime
import functools
from typing import TYPE_CHECKING, Final

from edge_agent.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo  # at run time only `zone` imports it: most nodes have no calendar windows

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


@functools.cache  # bounded: one entry per zone name
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

    wall: a naive datetime. If it occurs twice, the first occurrence counts; if clocks skip it, the moment of the change
    counts. So a day begins where its date begins, even if clocks go forward at midnight.
    """
    utc = wall.replace(tzinfo=zone, fold=0).astimezone(datetime.UTC)
    if utc.astimezone(zone).replace(tzinfo=None) != wall:  # clocks skip it: the change is at or before the fold=0 time
        low = wall.replace(tzinfo=zone, fold=1).astimezone(datetime.UTC)  # here clocks show an earlier time than `wall`
        while utc - low > SECOND:  # bisection; clocks change at whole seconds
            middle = low + (utc - low) // 2
            middle -= datetime.timedelta(microseconds=middle.microsecond)
            middle = max(middle, low + SECOND)
            if middle.astimezone(zone).replace(tzinfo=None) >= wall:
                utc = middle
            else:
                low = middle
        utc -= datetime.timedelta(microseconds=utc.microsecond)
    return (utc - EPOCH) // US
