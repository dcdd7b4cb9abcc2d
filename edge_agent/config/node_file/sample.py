"""The commented file that `headwater init` writes: every key of a role with its default and the reason for it."""

from __future__ import annotations

import json
from typing import Final

from edge_agent.config.checking.checker import REQUIRED, Key
from edge_agent.config.node_file.node_tables import FOR_ROLE, TABLES, keys_of

_BEGIN: Final = """\
# headwater.toml of {id}, a {role}. `headwater check {file}` names every mistake at once.
# Keys behind a # have the default that stands there. Sensors and queries also come by MQTT, while running:
# docs/configure.md. Relative paths are beside this file.
"""
_DEFINITIONS: Final = """
# What is measured: the machine itself, to begin with. [sensor.<id>]: drivers mqtt, host, file, simulated.
[sensor.host]
driver = "host"
metrics = ["cpu", "memory"]
every = "1s"

# What is asked: average and peak of each metric over every minute. [query.<id>]
[query.host-1m]
source = "host"
by = ["metric"]
window = {{ type = "tumbling", length = "1m" }}
aggregates = ["avg", "max"]
"""
_OPTIONAL: Final = ("local",)  # a table whose presence means something: it stays behind # as a whole
_COLUMN: Final = 44  # where the comments begin


def sample(role: str, file: str = "headwater.toml", **said: str) -> str:
    """A file for a role that passes the check. said: `id` and, by role, `broker` and `parent`."""
    parts = [_BEGIN.format(role=role, id=said["id"], file=file)]
    given: dict[str, dict[str, str]] = {
        "node": {"id": said["id"], "role": role},
        "uplink": {name: said[name] for name in ("broker", "parent") if name in said},
        "lower": {"broker": said["broker"]} if role == "root" else {},
        "local": {"broker": "mqtt://127.0.0.1:1883"},
    }
    for name in FOR_ROLE[role]:
        table = TABLES[name]
        about = (table.__doc__ or "").partition("]: ")[2].splitlines()[0]
        about = about[0].upper() + about[1:]
        mark = "# " if name in _OPTIONAL else ""
        lines = [_line(key, given.get(name, {}), name in _OPTIONAL) for key in keys_of(table)]
        parts.append("\n".join([f"\n# {about}", f"{mark}[{name}]", *lines, ""]))
    return "".join(parts) + (_DEFINITIONS.format() if role == "gateway" else "")


def _line(key: Key, given: dict[str, str], hidden: bool) -> str:
    """One key: said, or behind # with its default."""
    shown = key.name in given or key.default is REQUIRED
    value = given.get(key.name, "") if shown else key.default
    text = json.dumps(value if shown or value is None else key.kind.write(value), ensure_ascii=False)
    setting = f"{key.name} = {'...' if value is None else text}"
    about = key.doc + (f" ({key.why})" if key.why else "")
    begin = "# " if hidden or not shown else ""
    return f"{begin}{setting}".ljust(_COLUMN) + f"  # {about}"
