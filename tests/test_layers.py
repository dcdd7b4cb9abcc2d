"""Dependencies point inward: ports -> machines -> algebra; only the command line sees everything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from edge_agent.cli.main import module_of

ROOT: Final = Path(__file__).resolve().parents[1]
TOP: Final = "edge_agent"  # the files of this folder itself, not of those in it
CORE: Final = {"edge_agent.algebra", "edge_agent.errors"}
PARENT: Final = {f"edge_agent.machines.{room}" for room in ("events", "checkpoint", "downlink")}
AGENT: Final = {
    f"edge_agent.{room}" for room in ("machines", "ports", "wire", "config", "log", "packages", "runtime")
} | CORE

MAY_IMPORT: Final[dict[str, set[str]]] = {  # besides the standard library and the room itself; the longest key counts
    TOP: {"edge_agent.config", *CORE},
    "edge_agent/algebra": {"numpy", "edge_agent.errors"},
    "edge_agent/config": CORE,
    "edge_agent/machines": {"numpy", *CORE},
    "edge_agent/wire": {"cbor2", "numpy", *CORE},
    "edge_agent/root": {"numpy", "edge_agent.wire", "edge_agent.config", *PARENT, *CORE},  # pure: both roots share it
    "edge_agent/ports": {"numpy", "edge_agent.machines", "edge_agent.wire", "edge_agent.log", *CORE},
    "edge_agent/ports/sensors": {  # the record of a driver declares the fields of its definitions
        *("numpy", "edge_agent.machines", "edge_agent.wire", "edge_agent.config"),
        *CORE,
    },
    "edge_agent/ports/mqtt": {"paho", "numpy", "edge_agent.errors"},
    "edge_agent/recording": {
        *("numpy", "edge_agent.machines", "edge_agent.root", "edge_agent.wire", "edge_agent.config"),
        *CORE,
    },
    "edge_agent/runtime": AGENT,
    "edge_agent/provisioning": {"edge_agent.config", *CORE},
    "edge_agent/identity": {"cryptography", "edge_agent.config", *CORE},
    "edge_agent/demo": {
        "numpy",
        "matplotlib",
        "deltalake",
        "pyarrow",
        "cloud_job",
        "edge_agent.identity",  # its brokers and keys are those of a fleet
        *AGENT,
    },
    "cloud_job": {
        *("pyspark", "delta", "pyarrow", "numpy", "pandas", "edge_agent.config", "edge_agent.wire", "edge_agent.log"),
        *("edge_agent.packages", "edge_agent.root"),
        *PARENT,
        *CORE,
    },
    "cloud_job/sql": {"pyspark", "deltalake", "pyarrow", "edge_agent.config", *CORE},
    "cloud_job/audit": {"deltalake", "pyarrow", "numpy", "edge_agent.root", *CORE},  # rows and decisions
}
SEES_ALL: Final = ("edge_agent/cli", "edge_agent/__main__.py")
NOT_ON_A_GATEWAY: Final = (
    "cryptography",
    "pyspark",
    "pyarrow",
    "deltalake",
    "matplotlib",
    "rich",
    "pandas",
    "datasketches",
)


def sources() -> Iterator[tuple[str, str]]:
    for room in ("edge_agent", "cloud_job"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


@cache
def imports(text: str, path: str) -> tuple[str, ...]:
    """Every module a source names, also inside functions and under TYPE_CHECKING; `from a import b` gives a.b.

    Several tests ask this of every source: it is parsed once a process.
    """
    return tuple(_imports(text, path))


def _imports(text: str, path: str) -> Iterator[str]:
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            match node:
                case ast.Call(
                    ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name)), *_]
                ):
                    yield name


def room_of(path: str) -> str | None:
    """The rule a file falls under: the longest that fits. None: it sees everything."""
    if path.startswith(SEES_ALL):
        return None
    folder = path.rpartition("/")[0]
    fitting = [rule for rule in MAY_IMPORT if folder == rule or (rule != TOP and folder.startswith(f"{rule}/"))]
    assert fitting, f"{path} lies in no room: give it a line in MAY_IMPORT"
    return max(fitting, key=len)


def violations(text: str, path: str) -> list[str]:
    rule = room_of(path)
    if rule is None:
        return []
    room = "/".join(path.split("/")[:2]) if path.startswith("edge_agent/") else "cloud_job"
    own = room.removesuffix(".py").replace("/", ".")
    allowed = {own, *MAY_IMPORT[rule]}
    return [
        f"{path} imports {name}"
        for name in imports(text, path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not any(name == root or name.startswith(f"{root}.") for root in allowed)
    ]


def test_every_import_points_inward() -> None:
    found = [line for path, text in sources() for line in violations(text, path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("edge_agent/algebra/span.py", "import cbor2"),
        ("edge_agent/algebra/span.py", "from edge_agent.machines.events import Tick"),
        ("edge_agent/algebra/windows/sliding.py", "from ...wire import frames"),
        ("edge_agent/machines/slicing/slicer.py", "def f():\n    from edge_agent.ports import clock"),
        ("edge_agent/machines/downlink/inbox.py", "from edge_agent import wire"),
        ("edge_agent/wire/frames.py", "import edge_agent.machines.events"),
        ("edge_agent/ports/spool.py", "import paho.mqtt.client"),
        ("edge_agent/config/topics.py", "import importlib\nimportlib.import_module('paho.mqtt.client')"),
        ("cloud_job/spark/job.py", "from edge_agent.machines.slicing.slicer import Slicer"),
        ("cloud_job/spark/job.py", "import deltalake"),
        ("edge_agent/root/decision/window_ranges.py", "import pyspark"),
        ("edge_agent/errors.py", "import numpy as np"),
        ("edge_agent/runtime/loop.py", "from edge_agent.cli import main"),
    ],
)
def test_a_violation_is_found(path: str, text: str) -> None:
    assert violations(text, path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("edge_agent/algebra/windows/sliding.py", "import math\nfrom edge_agent.algebra.partials.arrays import Ints"),
        ("edge_agent/algebra/windows/sliding.py", "from . import tumbling\nfrom ..partial import Ints"),
        ("edge_agent/ports/mqtt/paho_client.py", "import paho.mqtt.client as mqtt"),
        ("edge_agent/cli/run.py", "import paho, pyspark"),
        ("cloud_job/spark/job.py", "from edge_agent.root.completeness import Decider\nfrom cloud_job import tables"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, text: str) -> None:
    assert not violations(text, path)


def circle(files: dict[str, str]) -> tuple[str, ...]:
    """Modules that import each other in a circle, also under TYPE_CHECKING; none if there is none. path -> text."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
    needs: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = {name if name in modules else name.rpartition(".")[0] for name in imports(files[path], path)}
        needs[module] = (named & modules.keys()) - {module}
    try:
        tuple(TopologicalSorter(needs).static_order())
    except CycleError as err:
        return tuple(err.args[1])
    return ()


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circle(dict(sources()))


def test_a_circle_is_found() -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cloud_job.b import B"
    assert set(circle({"cloud_job/a.py": typed, "cloud_job/b.py": "from cloud_job import a"})) == {
        "cloud_job.a",
        "cloud_job.b",
    }


def test_a_new_folder_needs_a_room() -> None:
    with pytest.raises(AssertionError, match="in no room"):
        room_of("edge_agent/helpers/text.py")


def test_no_test_module_is_imported_by_another() -> None:
    """What several tests need is in tests/support or tests/oracle."""
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in imports(path.read_text(), path.relative_to(ROOT).as_posix())
        if re.match(r"tests\.(\w+\.)*test_", name)
    ]
    assert not found, "\n".join(found)


def test_the_algebra_has_nothing_to_do_with_the_world() -> None:
    """No log, no clock, no thread, no file: pure functions on frozen values."""
    world = {"logging", "os", "pathlib", "random", "signal", "socket", "sqlite3", "subprocess", "threading", "time"}
    found = [
        (path, name)
        for path, text in sources()
        if path.startswith("edge_agent/algebra/")
        for name in imports(text, path)
        if name.partition(".")[0] in world or name == "importlib.metadata.entry_points"
    ]
    assert not found


def test_the_package_itself_imports_nothing() -> None:
    assert not list(imports((ROOT / "edge_agent/__init__.py").read_text(), "edge_agent/__init__.py"))


def test_a_gateway_process_never_loads_the_cloud() -> None:
    """The verbs of a gateway, imported as their process does, bring in no library that a gateway does not have."""
    verbs = ("run", "merge", "check", "init", "peek", "status", "explain", "simulate")
    modules = tuple(map(module_of, verbs))
    for verb, module in zip(verbs, modules, strict=True):
        if not (ROOT / f"{module.replace('.', '/')}.py").exists():
            pytest.fail(f"headwater {verb} is announced by --help and has no module")
    assert not loaded_by(modules, NOT_ON_A_GATEWAY)


def test_a_query_needs_no_spark() -> None:
    assert not loaded_by(("cloud_job.sql.delta_rs",), ("pyspark", "delta"))


def loaded_by(modules: tuple[str, ...], unwanted: tuple[str, ...]) -> str:
    """Which of the unwanted modules a process has loaded after it imported each of these, one after the other."""
    script = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    print(*[f"{{module}}: {{name}}" for name in {unwanted!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()
