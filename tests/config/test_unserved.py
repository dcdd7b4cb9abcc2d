"""What a file defines and a gateway does not serve: `check` says it before, the log when it runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.main import main
from edge_agent.config.in_force import crosscheck, registry
from edge_agent.config.in_force.crosscheck import too_many
from edge_agent.config.in_force.registry import MOST_WAITING
from edge_agent.config.in_force.unserved_report import unserved
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.config.node_file.settings import load, parse
from edge_agent.errors import ConfigError, Problem
from edge_agent.runtime.build import build
from edge_agent.runtime.gateway import GatewayLoop
from tests.support.config.parsing import parse_query

HEAD = '[node]\nid = "g"\n[uplink]\nbroker = "mqtt://127.0.0.1:{port}"\n[sensor.s]\ndriver = "simulated"\n'
BODY = '[query.q{n}]\nsource = "s"\nwindow = {{ type = "{type}", length = "{length}"{more} }}\naggregates = ["avg"]\n'


def gateway(
    many: int, kind: str = "tumbling", length: str = "1m", more: str = "", *, other: str = "", port: int = 1
) -> str:
    """A gateway with that many queries; {n} in length and other is the number of each."""
    texts = [
        BODY.format(n=n, type=kind, length=length.format(n=n + 1), more=more) + other.format(n=n) for n in range(many)
    ]
    return HEAD.format(port=port) + "".join(texts)


FILTERS = 'where = "value > {n}"\n'
LATENESSES = 'lateness = "{n}ms"\n'


def checked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code of `check`, and what it says of the file."""
    (tmp_path / "g.toml").write_text(text)
    code = main(["check", str(tmp_path / "g.toml")])
    said = capsys.readouterr()
    return code, [line.removeprefix(f"{tmp_path}/") for line in (said.err + said.out).splitlines()]


def test_check_refuses_queries_that_run_would_not_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(tmp_path, gateway(60, other=FILTERS) + "[limits]\ngroups = 20\n", capsys)
    assert code == 2
    why = "different sources, filters, labels or latenesses would be on this node, at most 20"
    hint = (
        "let queries share sources, filters, labels and latenesses, or set [limits] groups = {}; it can be at most 2000"
    )
    assert said == [
        *(f'g.toml:{7 + 5 * n + 4}  query "q{n}", where: 21 {why}; {hint.format(21)}' for n in range(20, 23)),
        f"g.toml  query: 37 more are not served: 60 {why}; {hint.format(60)}",
        "g.toml: 40 mistakes",
    ]
    assert checked(tmp_path, gateway(60, other=FILTERS) + "[limits]\ngroups = 60\n", capsys)[0] == 0


def test_check_bounds_window_edges_as_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(tmp_path, gateway(12, "sliding", "{n}s", ', slide = "1ms"'), capsys)
    assert (code, len(said)) == (2, 3)
    assert said[0] == (
        'g.toml:49  query "q10", window: 11000 window edges a second in all, at most 10000; '
        "use longer slides, or set [limits] edges_per_second = 11000; it can be at most 1000000"
    )
    assert checked(tmp_path, gateway(10, "sliding", "{n}s", ', slide = "1ms"'), capsys)[0] == 0


def test_edges_of_each_group_count_for_itself() -> None:
    """Sixty groups that are cut each millisecond are sixty thousand rows a second, though their windows are equal."""
    settings = parse(gateway(60, length="1ms", other=LATENESSES))
    (first, *_, rest), many = unserved(settings)
    assert (many, first.at) == (50, "query.q10.window")
    assert rest.why.startswith("47 more are not served: 60000 window edges a second")
    assert unserved(parse(gateway(60, length="1ms")))[1] == 0, "one group, one window: cut once"


def test_a_local_query_is_of_a_group_of_its_own() -> None:
    twins = gateway(10, length="1ms", other=LATENESSES) + BODY.format(n=10, type="tumbling", length="1ms", more="")
    assert unserved(parse(f'{twins}lateness = "3ms"\n'))[1] == 0
    assert unserved(parse(f'{twins}lateness = "3ms"\nscope = "local"\n'))[1] == 1


def test_what_check_counts_is_what_the_registry_serves() -> None:
    settings = parse(gateway(60, length="1ms", other=LATENESSES))
    made = registry.DefinitionRegistry("g", settings.limits, settings.definitions)
    served = {query.id for query in made.in_force()[1]}
    assert {item for _, item in made.refused()} == {f"q{n}" for n in range(60)} - served
    assert len(served) == 60 - unserved(settings)[1]


def test_a_definition_of_the_file_is_not_told_to_be_published() -> None:
    settings = parse(gateway(MOST_WAITING + 2, other=FILTERS) + "[limits]\ngroups = 1\n")
    items = registry.DefinitionRegistry("g", settings.limits, settings.definitions).state()["items"]
    hint = items[f"query/q{MOST_WAITING + 1}"]["errors"][0]["hint"]
    assert hint.startswith("reload the file once there is room; let queries share sources")


def test_too_many_queries_are_counted_with_the_limit_and_its_maximum() -> None:
    with pytest.raises(ConfigError) as err:
        parse(gateway(5) + "[limits]\nqueries = 4\n")
    hint = "set [limits] queries = 5; it can be at most 10000"
    assert str(err.value) == f"headwater.toml  query: 5 queries would be on this node, at most 4; {hint}"
    query = parse_query("q", {"source": "s", "window": {"type": "tumbling", "length": "1m"}, "aggregates": ["avg"]})
    problem = too_many("query", "", [query] * 10_001, LimitsTable())
    assert problem is not None
    assert problem.hint == "distribute them to more gateways: [limits] queries can be at most 10000"


def test_of_many_that_do_not_fit_each_is_refused_without_counting_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of some thousand filters does not hold the start of a gateway up."""
    counted: list[str] = []

    def too_much(kind: str, item: str, *rest: Any) -> Problem | None:
        counted.append(item)
        return crosscheck.too_much(kind, item, *rest)

    monkeypatch.setattr(registry, "too_much", too_much)
    limits = LimitsTable(groups=5)
    settings = parse(gateway(50, other=FILTERS))
    made = registry.DefinitionRegistry("g", limits, settings.definitions)
    assert (len(made.in_force()[1]), len(made.refused()), counted) == (5, 45, ["q5"])


def test_what_leaves_the_file_makes_room_for_what_comes_into_it() -> None:
    """Also where the limits are lower than they were."""
    definitions = parse(gateway(5, other=FILTERS)).definitions
    old = [d for d in definitions if d.id in {"s", "q0", "q1"}]
    state = registry.DefinitionRegistry("g", LimitsTable(groups=2), old).snapshot()
    new = [d for d in definitions if d.id in {"s", "q4"}]
    made = registry.DefinitionRegistry("g", LimitsTable(groups=1), new, state)
    assert [query.id for query in made.in_force()[1]] == ["q4"]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, held for the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_the_log_names_in_one_line_how_many_are_not_served_and_one_of_them(
    tmp_path: Path, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "g.toml").write_text(gateway(12, "sliding", "{n}s", ', slide = "1ms"', port=closed_port))
    loop = build(load(tmp_path / "g.toml"), "test")
    turns = iter(range(3))
    with caplog.at_level(logging.INFO, "headwater"):
        loop.run(lambda: next(turns, None) is None)
    (line,) = (record for record in caplog.records if record.msg == "definitions.refused")
    said = vars(line)
    assert (line.levelname, said["count"], said["item"], said["at"]) == ("WARNING", 2, "query/q10", "window")
    assert said["why"].startswith("11000 window edges a second in all")
    assert said["hint"].startswith("use longer slides")


def test_the_log_names_in_one_line_a_query_of_the_file_whose_id_is_published_too(
    tmp_path: Path, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "g.toml").write_text(gateway(3, "tumbling", "{n}s", port=closed_port))
    loop = build(load(tmp_path / "g.toml"), "test")
    assert isinstance(loop, GatewayLoop)
    published = '{"revision": 7, "source": "s", "aggregates": ["avg"], "window": {"type": "tumbling", "length": "1h"}}'
    loop.registry.take("all", "query", "q2", published)
    turns = iter(range(3))
    with caplog.at_level(logging.INFO, "headwater"):
        loop.run(lambda: next(turns, None) is None)
    (line,) = (record for record in caplog.records if record.msg == "queries.not_published")
    said = vars(line)
    assert (line.levelname, said["count"], said["query"]) == ("WARNING", 1, "q2")
    assert said["why"] == "revision 1 of this node's own file shows no rows: revision 7 of the id is published"


ROOT = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:1"\n[root]\nhorizon = "{}"\n'
SESSION = 'source = "s"\naggregates = ["avg"]\nwindow = {{ type = "session", gap = "{}" }}\n'


def test_a_gap_longer_than_the_horizon_of_the_root_is_a_mistake_of_the_files_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root.toml").write_text(ROOT.format("1h"))
    (tmp_path / "alone.toml").write_text(SESSION.format("61m"))
    files = [str(tmp_path / name) for name in ("g.toml", "root.toml", "alone.toml")]
    (tmp_path / "g.toml").write_text(f"{gateway(1)}[query.idle]\n{SESSION.format('2h')}")
    assert main(["check", *files[:1]]) == 0
    assert main(["check", *files]) == 2
    err = [line.removeprefix(f"{tmp_path}/") for line in capsys.readouterr().err.splitlines()]
    why = "longer than the correction horizon of the root, 1h; use at most 1h, or set [root] horizon ="
    assert err == [
        f'g.toml:14  query "idle", window.gap = "2h": {why} "2h" at the root',
        "g.toml: 1 mistake",
        f'alone.toml:3  window.gap = "61m": {why} "61m" at the root',
        "alone.toml: 1 mistake",
    ]
    (tmp_path / "root.toml").write_text(ROOT.format("2h"))
    assert main(["check", *files]) == 0
