"""The lists of built-in members, read from the source: which files of their folders they lack."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final, NamedTuple


class Registry(NamedTuple):
    """A list of files. names: of the list. helpers: files of the folder that define no member."""

    folder: str
    listed_in: str
    names: str
    helpers: frozenset[str]


REGISTRIES: Final = (
    Registry(
        "edge_agent/algebra/aggregates/families", "edge_agent/algebra/aggregates/__init__.py", "_FILES", frozenset()
    ),
    Registry(
        "edge_agent/algebra/windows",
        "edge_agent/algebra/windows/__init__.py",
        "_FILES",
        frozenset({"declaration", "edges", "ordered", "package_types", "protocols"}),
    ),
    Registry("edge_agent/algebra/columns", "edge_agent/algebra/columns/__init__.py", "_FILES", frozenset({"kind"})),
    Registry(
        "edge_agent/ports/sensors",
        "edge_agent/config/definitions/drivers.py",
        "FILES",
        frozenset(
            {
                "convert",
                "driver_calls",
                "file_access",
                "filters",
                "local_outages",
                "node_sensors",
                "payloads",
                "quality",
            }
        ),
    ),
)


def listed(top: Path, registry: Registry) -> list[str]:
    """The names in a registry's list."""
    for node in ast.parse((top / registry.listed_in).read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == registry.names and node.value is not None:
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{registry.listed_in} has no list {registry.names}")


def unlisted(top: Path) -> list[str]:
    """A line for each file that stands in no list. top: the folder that contains edge_agent."""
    lines = []
    for registry in REGISTRIES:
        known = {*listed(top, registry), *registry.helpers, "__init__"}
        for name in sorted({path.stem for path in (top / registry.folder).glob("*.py")} - known):
            file = f"{registry.folder}/{name}.py"
            lines.append(
                f'{file}: add "{name}" to {registry.names} in {registry.listed_in}, '
                "or to `helpers` in tests/support/registries.py if it defines no member"
            )
    return lines
