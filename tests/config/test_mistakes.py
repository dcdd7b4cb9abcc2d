"""Every kind of mistake in a configuration: refused, with its place and what to do, all of them at once."""

from __future__ import annotations

import pytest

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.node_file.settings import parse
from edge_agent.errors import ConfigError, NotSupported

WINDOW = 'window = {type = "tumbling", length = "1m"}'
QUERY = f'source = "b"\naggregates = ["avg"]\n{WINDOW}\n'
SLIDING = (
    'source = "b"\naggregates = ["avg"]\nwindow = {{type = "sliding", length = "{}", slide = "{}", offset = "{}"}}'
)
BAND = 'source = "b"\naggregates = ["avg"]\nwindow = {{type = "fixed_band", start = "{}", length = "{}"}}'
CALENDAR = 'source = "b"\naggregates = ["avg"]\nwindow = {{type = "calendar", every = "{}", tz = "{}", offset = "{}"}}'
FILE = '[node]\nid = "press-1"\n[uplink]\nbroker = "mqtt://127.0.0.1"\n'

QUERIES = [  # text -> what the line says, what it advises
    ("", "empty", "write a TOML or JSON definition"),
    ("not a definition", "no TOML", "a definition is TOML (key = value) or JSON ({...})"),
    ('{"source": "b",}', "no JSON", ""),
    (f'source = "b"\n{WINDOW}', '"aggregates" is missing', "add aggregates"),
    (f'aggregates = ["avg"]\n{WINDOW}', '"source" is missing', "add source"),
    ('source = "b"\naggregates = ["avg"]', '"window" is missing', "add window"),
    (QUERY + 'sorce = "c"', 'unknown key "sorce"', 'did you mean "source"'),
    (QUERY + 'aggregate = "avg"', 'unknown key "aggregate"', 'did you mean "aggregates"'),
    (QUERY + "lateness = 5", "wanted a duration with its unit, got a number", '"5s" or "5ms"'),
    (QUERY + 'lateness = "5 seconds"', "no number with its unit", 'did you mean "5s"'),
    (QUERY + 'lateness = "-5s"', "no number with its unit", ""),
    (QUERY + 'lateness = "30d"', "longer than 7d", 'did you mean "7d"'),
    (QUERY + 'late = "ignore"', 'unknown policy "ignore"', "one of revise, drop, per_window"),
    (QUERY + 'scope = "globl"', 'unknown scope "globl"', 'did you mean "global"'),
    (QUERY + "revision = 0", "must be at least 1", ""),
    (QUERY + "revision = 1.5", "wanted a whole number", "try 2"),
    (QUERY + 'revision = "3"', "wanted a whole number, got text", "without quotes"),
    (QUERY + "revision = true", "wanted a whole number, got true or false", ""),
    (QUERY + 'by = "site"', "wanted a list, got text", "in brackets"),
    (QUERY + 'by = ["site", "site"]', "stands twice", "leave one out"),
    (QUERY + 'by = ["value"]', "no label name", "letters, digits and _"),
    (QUERY + 'where = "value >"', "where", "like"),
    (QUERY + "where = \"site == 'a'\"", "where", "like"),
    (QUERY + 'where = "value > 0; drop table x"', "where", "like"),
    (QUERY + 'effective_from = "tomorrow"', "no moment of time", "2026-11-21T00:00:00Z"),
    (QUERY + "effective_from = 2026-11-21T00:00:00", "says no time zone", "is UTC"),
    (QUERY + 'nodes = ["Press *"]', "no node pattern", "press-*"),
    (QUERY + "nodes = []", "wanted 1 to", ""),
    (QUERY + 'removed = "yes"', "wanted true or false, got text", ""),
    (QUERY.replace('"b"', '"Boiler 7"'), "no id", "a-z, 0-9 and -"),
    (QUERY.replace('["avg"]', '["mean"]'), 'unknown function "mean"', 'did you mean "avg"'),
    (QUERY.replace('["avg"]', '["avgg"]'), 'unknown function "avgg"', 'did you mean "avg"'),
    (QUERY.replace('["avg"]', "[]"), "wanted 1 to 64 entries, got 0", ""),
    (QUERY.replace('["avg"]', '["avg", "avg"]'), "two columns of one name", "as = "),
    (QUERY.replace('["avg"]', '[{fn = "avg", as = "Key"}]'), "is a column of every result already", "Key_value"),
    (QUERY.replace('["avg"]', '[{fn = "avg", as = "a b"}]'), "no column name", "letters, digits and _"),
    (QUERY.replace('["avg"]', '[{fn = "stddev", ddof = 2}]'), "2 is none of 0, 1", ""),
    (QUERY.replace('["avg"]', '[{fn = "sum", ddof = 1}]'), 'unknown key "ddof"', "known here: as"),
    (QUERY.replace('["avg"]', '[{name = "avg"}]'), '"fn" is missing', "add fn"),
    (QUERY.replace('["avg"]', "[7]"), "wanted a function, got a number", "avg"),
    (QUERY.replace('"tumbling"', '"tumblin"'), 'unknown window type "tumblin"', 'did you mean "tumbling"'),
    (QUERY.replace('type = "tumbling", ', ""), '"type" is missing', "tumbling"),
    (QUERY.replace(', length = "1m"', ""), '"length" is missing', "add length"),
    (QUERY.replace('"1m"', '"1m", slide = "10s"'), 'unknown key "slide"', 'use type = "sliding"'),
    (QUERY.replace('"1m"', '"10us"'), "shorter than 1ms", 'did you mean "1ms"'),
    (QUERY.replace('"1m"', '"400d"'), "longer than 366d", 'did you mean "366d"'),
    (QUERY.replace(WINDOW, 'window = "1m"'), "wanted a table, got text", "tumbling"),
    (SLIDING.format("10m", "11m", "0s"), "longer than length 10m", 'did you mean "10m"'),
    (SLIDING.format("10m", "1m", "1m"), "not shorter than the slide", 'did you mean "0s"'),
    (SLIDING.format("10m", "1m", "90s"), "not shorter than the slide", 'did you mean "30s"'),
    (BAND.format("2026-11-21", "1h"), "says no time zone", "Z"),
    (BAND.format("2026-11-21T06:00:00Z", "0s"), "shorter than 1ms", 'did you mean "1ms"'),
    (BAND.format("2026-11-21T06:00:00Z", "2000d"), "longer than 366d", 'did you mean "366d"'),
    (CALENDAR.format("year", "UTC", "0s"), 'unknown word "year"', "day, week, month"),
    (CALENDAR.format("day", "Europe/Berln", "0s"), "no time zone", 'did you mean "Europe/Berlin"'),
    (CALENDAR.format("day", "New York", "0s"), "no time zone", 'did you mean "America/New_York"'),
    (CALENDAR.format("day", "../../etc/passwd", "0s"), "no time zone", "Europe/Berlin"),
    (CALENDAR.format("day", "UTC", "30h"), "not shorter than the shortest day", 'did you mean "6h"'),
    (CALENDAR.format("month", "UTC", "28d"), "not shorter than the shortest month", 'did you mean "0s"'),
    (QUERY.replace('"1m"', '"5000d"'), "longer than 366d", 'did you mean "366d"'),
    (QUERY.replace('"1m"', '"1us"'), "shorter than 1ms", 'did you mean "1ms"'),
    (QUERY.replace('"tumbling", length = "1m"', '"session", gap = "8d"'), "longer than 7d", 'did you mean "7d"'),
    (QUERY.replace('"tumbling", length = "1m"', '"session", gap = "0s"'), "shorter than 1ms", 'did you mean "1ms"'),
    (SLIDING.format("7d", "1s", "0s"), "every reading would be in 604800 windows", 'did you mean "7s"'),
    (QUERY + "x = 1\ny = 2\nz = 3", 'unknown key "x"', "known here"),
    (QUERY.replace('"1m"', '"99999999999999999999d"'), "longer than 366d", 'did you mean "366d"'),
    (
        QUERY.replace('"tumbling", length = "1m"', '"session", gap = "8d"'),
        "longer than 7d, the usual correction horizon",
        "7d",
    ),
    (QUERY.replace('"tumbling", length = "1m"', '"count_tumbling", length = "9s"'), "got text", "a plain number, 1 to"),
    (QUERY.replace('"tumbling"', '"hopping"'), 'unknown window type "hopping"', 'did you mean "sliding"'),
    (QUERY.replace('"tumbling"', '"moon"'), 'unknown window type "moon"', "what an installed package brings"),
    (QUERY.replace('["avg"]', '["plant_x_y"]'), 'unknown function "plant_x_y"', "what an installed package brings"),
    (CALENDAR.format("day", "Mars/Base", "0s"), "no time zone", 'like "Europe/Berlin"'),
    (QUERY.replace('["avg"]', '["quantile"]'), '"q" is missing', "a number of 0 to 1"),
    (QUERY.replace('["avg"]', '[{fn = "quantile", q = -0.1}]'), "must be at least 0", "a number of 0 to 1"),
    (QUERY.replace('["avg"]', '[{fn = "quantile", q = 1.5}]'), "must be at most 1", "a number of 0 to 1"),
    (QUERY.replace('["avg"]', '[{fn = "quantile", q = 95}]'), "must be at most 1", 'did you mean "0.95"'),
    (QUERY + 'scope = "distributed"', 'unknown scope "distributed"', "headwater explain says it"),
    (QUERY + 'placement = "gateway"', 'unknown key "placement"', "headwater explain says it"),
    (QUERY.replace('["avg"]', '[{fn = "sequence", distributed = true}]'), 'key "distributed"', "headwater explain"),
]

SENSORS = [
    ('unit = "x"', '"driver" is missing', "add driver"),
    ('driver = "mqqt"\ntopic = "a"', 'unknown driver "mqqt"', 'did you mean "mqtt"'),
    ('drivr = "host"', 'unknown key "drivr"', 'did you mean "driver"'),
    ('driver = "mqtt"', '"topic" is missing', "add topic"),
    ('driver = "mqtt"\ntopic = "a/#/b"', "# stands alone at the end", 'did you mean "a/#"'),
    ('driver = "mqtt"\ntopic = "a/b+/c"', "+ stands for a whole level", 'did you mean "a/+/c"'),
    ('driver = "mqtt"\ntopic = ""', "wanted a topic of 1 to 1000 bytes", ""),
    ('driver = "mqtt"\ntopic = "$share/g/a"', "a shared subscription would lose readings", 'did you mean "a"'),
    ('driver = "mqtt"\ntopic = "a"\nvalue = "temperature"', "no JSON pointer", '"/temperature"'),
    ('driver = "mqtt"\ntopic = "a"\nqos = 2', "must be at most 1", ""),
    ('driver = "mqtt"\ntopic = "a"\nmetrics = ["cpu"]', 'unknown key "metrics"', "it belongs to driver host"),
    (
        'driver = "mqtt"\ntopic = "a/+"\nlabels = {m = "{topic[2]}"}',
        "the topic has levels 0 to 1",
        'did you mean "{topic[1]}"',
    ),
    ('driver = "mqtt"\ntopic = "a"\nlabels = {m = "{topic}"}', "braces hold", "{topic[1]}"),
    ('driver = "mqtt"\ntopic = "a"\nlabels = {"m n" = "x"}', "no label name", "letters, digits and _"),
    ('driver = "mqtt"\ntopic = "a"\nlabels = {value = "x"}', "no label name", "not a word of `where`"),
    ('driver = "mqtt"\ntopic = "a"\nlabels = {m = true}', "wanted text, got true or false", "in quotes"),
    ('driver = "host"\nlabels = {m = "{topic[0]}"}', "readings of driver host have no topic", "say the label's text"),
    ('driver = "host"\nlabels = {m = "{/a}"}', "readings of driver host have no payload", "say the label's text"),
    ('driver = "host"\nmetrics = ["cpus"]', 'unknown metric "cpus"', 'did you mean "cpu"'),
    ('driver = "host"\nevery = "1us"', "shorter than 10ms", 'did you mean "10ms"'),
    ('driver = "host"\nresolution = 0', "must be more than 0", "leave it out"),
    ('driver = "host"\nresolution = "0.1"', "wanted a number, got text", "like 0.1"),
    ('driver = "host"\nresolution = 1e-12', "no step between", "like 0.1"),
    ('driver = "host"\nrange = [5, 1]', "the lowest comes first", "[1, 5]"),
    ('driver = "host"\nrange = [1]', "wanted two numbers", "[lowest, highest]"),
    ('driver = "host"\nresolution = 1e-9\nrange = [0, 1e9]', "more than 2^53 steps", "a coarser resolution"),
    ('driver = "host"\nnan = "zero"', 'unknown policy "zero"', "one of skip, quarantine"),
    ('driver = "host"\ntimeout = "0s"', "shorter than 10ms", 'did you mean "10ms"'),
    ('driver = "file"', '"path" is missing', "add path"),
    ('driver = "file"\npath = "x"\nspeed = "fast"', "wanted a number, got text", ""),
    ('driver = "simulated"\nwave = "sinus"', 'unknown wave "sinus"', 'did you mean "sine"'),
    ('driver = "simulated"\nrate = 0', "must be more than 0", ""),
    ('driver = "simulated"\ngaps = 2', "must be at most 1", ""),
    ('driver = "simulated"\noutage_for = "5s"', "must be shorter than outage_every", "say outage_every too"),
]

FILES = [
    ("[node]\n", '"id" is missing', "add id"),
    ('[uplink]\nbroker = "mqtt://a"', "[node] is missing", "add [node]"),
    ('[node]\nid = "a"', "[uplink] is missing", "a gateway needs it"),
    (FILE + "[uplnk]\n", 'unknown key "uplnk"', '"[uplink]"'),
    (FILE + "[sensors]\n", 'unknown key "sensors"', '"[sensor]"'),
    (FILE + "[gateway]\n", 'unknown key "gateway"', '"[node]"'),
    (FILE.replace("press-1", "Press 1"), "no node id", "a-z, 0-9 and -"),
    (FILE.replace("press-1", "p" * 33), "no node id", "at most 32"),
    (
        FILE.replace('id = "press-1"', 'id = "press-1"\nrole = "merger"'),
        'unknown role "merger"',
        "one of gateway, region, root",
    ),
    (FILE.replace("mqtt://127.0.0.1", "127.0.0.1:1883"), "no address of a broker", "mqtt://127.0.0.1:1883"),
    (FILE.replace("mqtt://127.0.0.1", "http://a"), "no address of a broker", "mqtts://"),
    (FILE.replace("mqtt://127.0.0.1", "mqtt://a:99999"), "the port is no number", "mqtts://"),
    (FILE.replace("mqtt://127.0.0.1", "mqtt://me:secret@a"), "credentials do not stand in an address", "password_file"),
    (FILE + 'parent = "press-1"', "is this node itself", "the node above"),
    (FILE + 'password = "secret"', 'unknown key "password"', "password_file = ..."),
    (FILE + 'password_file = "x"', "a password without a user", "add user"),
    (FILE + 'cert_file = "x"', "certificate and key go together", "add key_file"),
    (FILE + 'ca_file = "x"', "the broker's address is without TLS", "mqtts://"),
    (FILE + "heartbeat = 1", "wanted a duration with its unit", '"1s"'),
    (FILE + "in_flight = 0", "must be at least 1", ""),
    (FILE + '[spool]\nquota = "256 mb"', "no number with its unit", "256MB"),
    (FILE + '[spool]\nquota = "12B"', "must be 1MB to 1000GB", ""),
    (FILE + '[spool]\npath = ""', "no printable text", ""),
    (FILE + "[limits]\nsensors = 1000000", "must be at most 256", ""),
    (FILE + "[lower]\n", "a gateway has no [lower]", "it is for role region or root"),
    (FILE + '[sensor.x]\ndriver = "mqtt"\ntopic = "a"', "driver mqtt needs a local broker", "[local]"),
    (FILE + "[sensor]\nx = 1", "wanted a table", "[sensor.x]"),
    ("sensor = 1\n" + FILE, "wanted tables [sensor.<id>]", "[sensor.boiler]"),
    (FILE + f"[query.results]\n{QUERY}", "a table has this name", "results-1"),
    (FILE + f'[query."B ä"]\n{QUERY}', "no id of a query", 'did you mean "b--"'),
    ('[node]\nid = "r"\nrole = "root"\n[lower]\n', '"broker" is missing', "mqtt://"),
    (
        '[node]\nid = "r"\nrole = "root"\n[lower]\nbroker = "mqtt://a"\n[query.x]\n' + QUERY,
        "has no definitions of its own",
        "hw/1/all/cfg",
    ),
    (
        '[node]\nid = "r"\nrole = "region"\n[uplink]\nbroker = "mqtt://a"\nheartbeat = "30s"\n[lower]\ngrace = "1m"',
        "not more than 1m: two heartbeats",
        "a longer grace",
    ),
    (
        '[node]\nid = "r"\nrole = "region"\n[uplink]\nbroker = "mqtt://a"\n[lower]\nmembers = ["a"]\nretired = ["a"]',
        "is among members too",
        "leave it out of one",
    ),
]


@pytest.mark.parametrize(("text", "why", "hint"), QUERIES, ids=range(len(QUERIES)))
def test_a_wrong_query_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse_definition("query", "x", text), 'query "x"', why, hint)


@pytest.mark.parametrize(("text", "why", "hint"), SENSORS, ids=range(len(SENSORS)))
def test_a_wrong_sensor_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse_definition("sensor", "x", text), 'sensor "x"', why, hint)


@pytest.mark.parametrize(("text", "why", "hint"), FILES, ids=range(len(FILES)))
def test_a_wrong_file_is_refused_with_what_to_do(text: str, why: str, hint: str) -> None:
    _refused(lambda: parse(text, "edge.toml"), "edge.toml", why, hint)


def _refused(act: object, begin: str, why: str, hint: str) -> None:
    assert callable(act)
    with pytest.raises(ConfigError) as caught:
        act()
    lines = str(caught.value).splitlines()
    assert not isinstance(caught.value, NotSupported)
    assert any(why in line and hint in line for line in lines), str(caught.value)
    assert all(line.startswith(begin) for line in lines), str(caught.value)
    assert len(lines) == len(caught.value.problems)
    assert all(len(line) < 400 for line in lines)


def test_all_mistakes_come_at_once_each_with_its_line() -> None:
    text = """\
[node]
id = "press-1"
[uplink]
broker = "mqtt://127.0.0.1"
hartbeat = "1s"

[sensor.boiler]
driver = "host"
every = "1 sec"

[query.boiler-1m]
source = "boiler"
windw = { type = "tumbling", length = "1m" }
aggregates = ["avg", "mean"]
"""
    with pytest.raises(ConfigError) as caught:
        parse(text, "edge.toml")
    assert str(caught.value).splitlines() == [
        'edge.toml:5  uplink: unknown key "hartbeat"; did you mean "heartbeat"?',
        'edge.toml:9  sensor "boiler", every = "1 sec": no number with its unit; did you mean "1s"?',
        'edge.toml:13  query "boiler-1m": unknown key "windw"; did you mean "window"?',
        'edge.toml:14  query "boiler-1m", aggregates[1]: unknown function "mean"; did you mean "avg"?',
    ]
    assert [(p.at, p.got, p.line) for p in caught.value.problems] == [
        ("uplink.hartbeat", "hartbeat", 5),
        ("sensor.boiler.every", "1 sec", 9),
        ("query.boiler-1m.windw", "windw", 13),
        ("query.boiler-1m.aggregates[1]", "mean", 14),
    ]


def test_the_problem_of_the_documents_looks_as_documented() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_definition("query", "x", SLIDING.format("10m", "11m", "0s"))
    (problem,) = caught.value.problems
    assert (problem.at, problem.got, problem.why, problem.hint) == (
        "window.slide",
        "11m",
        "longer than length 10m",
        "10m",
    )


def test_words_of_packages_are_named_beside_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six functions of a package installed it was "one of 58 in docs/configure.md", where 52 stand."""
    text = QUERY.replace('["avg"]', '["zzqqx"]')
    with pytest.raises(ConfigError) as ours:
        parse_definition("query", "q", text)
    monkeypatch.setitem(FUNCTIONS, "acme_cube", FUNCTIONS["avg"])
    with pytest.raises(ConfigError) as both:
        parse_definition("query", "q", text)
    count = f"one of {len(FUNCTIONS) - 1} in docs/configure.md, or "
    assert count + "what an installed package brings" in str(ours.value)
    assert count + "of an installed package: acme_cube" in str(both.value)
    with pytest.raises(ConfigError, match='did you mean "acme_cube"'):
        parse_definition("query", "q", text.replace("zzqqx", "acme_cub"))
    assert parse_definition("query", "q", text.replace("zzqqx", "acme_cube")).value is not None


def test_a_foreign_value_is_shown_short_and_no_secret_at_all() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_definition("query", "x", QUERY + f'late = "{"z" * 5000}"')
    assert len(str(caught.value)) < 400
    assert len(str(caught.value.problems[0].got)) <= 60
    with pytest.raises(ConfigError) as caught:
        parse(FILE.replace("mqtt://127.0.0.1", "mqtt://me:hunter2@a") + 'password = "hunter2"', "edge.toml")
    assert "hunter2" not in str(caught.value)
