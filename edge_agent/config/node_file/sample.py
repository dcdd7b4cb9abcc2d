"""Writes the commented file of `headwater init`: each key of a role with its default and the reason for the default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from edge_agent.config.checking.checker import REQUIRED, Key
from edge_agent.config.node_file.node_tables import FOR_ROLE, TABLES, keys_of

_BEGIN: Final = """\
# Settings of {id}, a {role}. `headwater check {file}` lists every mistake in this file.
# A key behind a # has the default shown there. Relative paths start at the folder of this file. Sensors and queries
# can also be published on MQTT while the node runs: docs/configure.md.
"""
_DEFINITIONS: Final = """
# Sensors, [sensor.<id>]: drivers mqtt, host, file, simulated. This one reads the machine itself.
[sensor.host]
driver = "host"
metrics = ["cpu", "memory"]
every = "1s"

# Queries, [query.<id>]. This one: average and maximum of each metric over every minute.
[query.host-1m]
source = "host"
by = ["metric"]
window = { type = "tumbling", length = "1m" }
aggregates = ["avg", "max"]

# A simulated sensor and a query of it, for `headwater simulate`. Delete both before real readings count.
[sensor.boiler]
driver = "simulated"
mean = 60.0
amplitude = 5.0
noise = 0.5
unit = "°C"
labels = { site = "a" }

[query.boiler-10m]
source = "boiler"
by = ["site"]
window = { type = "sliding", length = "10m", slide = "1m" }
aggregates = ["avg", "max"]
"""
_OPTIONAL: Final = ("local",)  # tables that switch something on: written as comments
_COLUMN: Final = 44  # column at which comments begin


def sample(role: str, file: str = "headwater.toml", **chosen: str) -> str:
    """The text of a valid file for a role. chosen: the value of `id`; of `broker` and `parent` if the role has them."""
    parts = [_BEGIN.format(role=role, id=chosen["id"], file=file)]
    values: dict[str, dict[str, str]] = {
        "node": {"id": chosen["id"], "role": role},
        "uplink": {name: chosen[name] for name in ("broker", "parent") if name in chosen},
        "lower": {"broker": chosen["broker"]} if role == "root" else {},
        "local": {"broker": "mqtt://127.0.0.1:1883"},
        "spool": {"path": f"{chosen['id']}.db"},  # so that nodes with files in one folder have different spools
    }
    for name in FOR_ROLE[role]:
        table = TABLES[name]
        mark = "# " if name in _OPTIONAL else ""
        lines = [_line(key, values.get(name, {}), name in _OPTIONAL) for key in keys_of(table)]
        parts.append("\n".join([_about(table), f"{mark}[{name}]", *lines, ""]))
    return "".join(parts) + (_DEFINITIONS if role == "gateway" else "")


_IMAGE: Final = """\
# gateway.toml of {id}: everything the gateway image needs to know. Put it on the card with
# `headwater image configure IMG_OR_DEVICE --config {file}`, or copy it to the card's first partition.
# It is applied at every boot; mistakes are in gateway-errors.txt beside it. A key behind a # has the default shown.
"""
_IMAGE_END: Final = """
# Sensors and queries can be added here, as in headwater.toml, or be published on MQTT: docs/configure.md.
"""


def sample_gateway_file(file: str, machine: Mapping[str, type], **chosen: str) -> str:
    """The text of a valid gateway.toml. machine: tables that headwater.toml does not have. chosen: as in `sample`."""
    values: dict[str, dict[str, str]] = {
        "node": {"id": chosen["id"]},
        "uplink": {name: chosen[name] for name in ("broker", "parent") if name in chosen},
    }
    parts = [_IMAGE.format(id=chosen["id"], file=file)]
    tables = [("node", TABLES["node"]), ("uplink", TABLES["uplink"]), *machine.items()]
    for name, table in tables:
        hidden = name in machine  # these tables switch something on
        keys = [key for key in keys_of(table) if not key.name.endswith("_file") and key.name != "role"]
        lines = [_line(key, values.get(name, {}), hidden) for key in keys]
        parts.append("\n".join([_about(table), f"{'# ' if hidden else ''}[{name}]", *lines, ""]))
    return "".join(parts) + _IMAGE_END


def _about(table: type) -> str:
    """The line above a table: what it is for, of its docstring, which `python -OO` leaves out."""
    about = (table.__doc__ or "").partition("]: ")[2].partition("\n")[0]
    return f"\n# {about[0].upper()}{about[1:]}" if about else ""


def _line(key: Key, values: dict[str, str], hidden: bool) -> str:
    """The line of one key: with the chosen value, or its default as a comment. hidden: always as a comment."""
    shown = key.name in values or key.default is REQUIRED
    value = values.get(key.name, None if hidden else "") if shown else key.default
    text = json.dumps(value if shown or value is None else key.kind.write(value), ensure_ascii=False)
    setting = f"{key.name} = {'...' if value is None else text}"
    about = key.doc + (f" ({key.why})" if key.why else "")
    begin = "# " if hidden or not shown else ""
    return f"{begin}{setting}".ljust(_COLUMN) + f"  # {about}"
