from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import jsonschema
import pytest

from edge_agent.algebra.frame import HORIZON_US, MAX_HORIZON_US
from edge_agent.config.checking.checker import BAD
from edge_agent.config.node_file.node_tables import FOR_ROLE, ROLES, TABLES, keys_of
from edge_agent.config.node_file.sample import sample
from edge_agent.config.node_file.settings import Settings, load, notes, parse
from edge_agent.errors import ConfigError
from tests.support.published.schema import schemas

GATEWAY = """
[node]
id = "press-1"
[uplink]
broker = "mqtts://broker.example"
parent = "region-a"
ca_file = "ca.pem"
[local]
broker = "mqtt://127.0.0.1:1884"
[spool]
commit_interval = "500ms"
[sensor.boiler]
driver = "file"
path = "boiler.csv"
[query.boiler-1m]
source = "boiler"
window = { type = "tumbling", length = "1m" }
aggregates = ["avg"]
"""
REGION = '[node]\nid = "r"\nrole = "region"\n[uplink]\nbroker = "mqtt://a"\n'


def test_a_file_is_read_with_its_units_and_defaults() -> None:
    settings = parse(GATEWAY)
    assert settings.node.id == "press-1"
    assert settings.node.role == "gateway"
    assert settings.uplink is not None
    assert settings.uplink.broker == "mqtts://broker.example:8883"
    assert (settings.uplink.parent, settings.uplink.keepalive_us) == ("region-a", 30_000_000)
    assert (settings.spool.commit_interval_us, settings.spool.quota_bytes) == (500_000, 256_000_000)
    assert [(d.kind, d.id, d.revision) for d in settings.definitions] == [
        ("sensor", "boiler", None),
        ("query", "boiler-1m", None),
    ]


def test_the_defaults_are_those_of_the_documents() -> None:
    settings = parse(REGION)
    assert settings.uplink is not None
    assert (settings.uplink.heartbeat_us, settings.uplink.in_flight) == (1_000_000, 20)
    assert (settings.spool.commit_interval_us, settings.spool.quota_bytes) == (1_000_000, 256_000_000)
    assert settings.lander.flush_interval_us == 500_000
    assert (settings.root.horizon_us, settings.root.revise_every_us) == (HORIZON_US, 60_000_000)


@pytest.mark.parametrize(("days", "fits"), [(MAX_HORIZON_US // 86_400_000_000, True), (367, False)])
def test_the_longest_horizon_is_that_of_receipts(days: int, fits: bool) -> None:
    """protocol 3.2: the lander tells it as it stands in the file."""
    root = f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://a"\n[root]\nhorizon = "{days}d"\n'
    if fits:
        assert parse(root).root.horizon_us == MAX_HORIZON_US
        return
    with pytest.raises(ConfigError, match="horizon"):
        parse(root)


def test_results_are_kept_for_at_least_the_horizon() -> None:
    root = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://a"\n[root]\nhorizon = "7d"\n'
    root += 'keep_results = "{}"\n'
    assert parse(root.format("7d")).root.keep_results_us == 7 * 86_400_000_000
    with pytest.raises(ConfigError, match=r"keep_results.*1d.*shorter than the horizon.*use at least 7d"):
        parse(root.format("1d"))


def test_grace_is_sixty_seconds_for_each_tier_below() -> None:
    """protocol 4.4"""
    root = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://a"\n'
    assert parse(REGION).grace_us == 60_000_000
    assert parse(REGION + "[lower]\ntiers = 2").grace_us == 120_000_000
    assert parse(root).grace_us == 120_000_000
    assert parse(root + 'grace = "5m"').grace_us == 300_000_000


@pytest.mark.parametrize(
    ("tiers", "grace", "right"), [(1, "2s", False), (1, "3s", True), (2, "62s", False), (2, "63s", True)]
)
def test_grace_is_longer_than_two_heartbeats_and_the_grace_below(tiers: int, grace: str, right: bool) -> None:
    """protocol 4.4"""
    text = f'{REGION}[lower]\ntiers = {tiers}\ngrace = "{grace}"'
    if right:
        assert parse(text).lower is not None
    else:
        with pytest.raises(ConfigError, match="two heartbeats"):
            parse(text)


def test_a_region_without_a_lower_broker_has_one_connection_for_both_sides() -> None:
    settings = parse(
        REGION.replace("mqtt://a", "mqtts://a:1") + 'user = "r"\npassword_file = "p"\n[lower]\nretired = ["x"]'
    )
    assert settings.lower is not None
    assert (settings.lower.broker, settings.lower.user, settings.lower.retired) == ("mqtts://a:1", "r", ("x",))
    assert settings.one_broker
    assert parse(REGION).one_broker
    assert parse(REGION + '[lower]\nbroker = "mqtt://a:1883"').one_broker, "the same broker said twice"
    assert not parse(REGION + '[lower]\nbroker = "mqtt://b"').one_broker


def test_relative_paths_are_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(GATEWAY)
    settings = load(file)
    assert settings.uplink is not None
    assert settings.uplink.ca_file == str(tmp_path / "ca.pem")
    assert settings.spool.path == str(tmp_path / "spool.db")
    (sensor,) = (d.value for d in settings.definitions if d.kind == "sensor")
    assert dict(getattr(sensor, "options"))["path"] == str(tmp_path / "boiler.csv")  # noqa: B009 - a union of values
    assert load(file, tmp_path / "state").spool.path == str(tmp_path / "state" / "spool.db")
    assert load(file, tmp_path / "state").definitions == settings.definitions, "what is read stays beside the file"
    root = tmp_path / "root.toml"
    root.write_text(
        '[node]\nid="root"\nrole="root"\n[lower]\nbroker="mqtt://a"\n[root]\ntables="s3://x/y"\ncheckpoint="c"'
    )
    assert load(root).root.tables == "s3://x/y"
    (note,) = notes(load(root))
    assert note.startswith("[root] checkpoint has no effect")
    root.write_text('[node]\nid="root"\nrole="root"\n[lower]\nbroker="mqtt://a"\n[root]\ntables="t"')
    assert notes(load(root)) == (), "one that does not name it hears nothing of it"


def test_a_refusal_without_a_reason_is_a_defect_and_no_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.config.node_file.settings.read_settings", lambda *_: BAD)
    with pytest.raises(AssertionError, match="BAD without a problem"):
        parse(GATEWAY)


def test_a_file_that_is_not_there_or_not_readable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or directory; `headwater init` writes one"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path)


def test_what_is_worth_a_look_is_a_note() -> None:
    text = GATEWAY.replace('source = "boiler"', 'source = "boilr"').replace("mqtts://broker.example", "mqtt://b")
    text = text.replace('ca_file = "ca.pem"', 'user = "someone"\npassword_file = "p"')
    said = notes(parse(text))
    assert len(said) == 3
    assert (
        'query "boiler-1m": no sensor "boilr" in this file; it waits until one is published; did you mean boiler?'
        in said
    )
    assert notes(parse(GATEWAY)) == ()


@pytest.mark.parametrize("role", ROLES)
def test_the_sample_of_a_role_passes_and_says_every_key(role: str) -> None:
    text = sample(role, id="n-1", broker="mqtt://127.0.0.1:1883", parent="root")
    settings = parse(text)
    assert isinstance(settings, Settings)
    assert settings.node.role == role
    for name in FOR_ROLE[role]:
        assert f"[{name}]" in text
        for key in keys_of(TABLES[name]):
            assert f"{key.name} = " in text, key.name


@pytest.mark.parametrize("role", ROLES)
def test_the_sample_with_every_default_said_aloud_means_the_same(role: str) -> None:
    """The defaults that stand behind # are the defaults."""
    text = sample(role, id="n-1", broker="mqtt://127.0.0.1:1883", parent="root")
    aloud = [
        line[2:]
        if line.startswith("# ") and " = " in line and not line.split("=")[1].strip().startswith("...")
        else line
        for line in text.splitlines()
    ]
    aloud = [line.replace("# [local]", "[local]") for line in aloud]
    spoken, silent = parse("\n".join(aloud)), parse(text)
    for f in fields(Settings):
        if f.name != "local":
            assert getattr(spoken, f.name) == getattr(silent, f.name), f.name


def test_every_setting_has_its_unit_in_its_name_and_words_about_it() -> None:
    for name, table in TABLES.items():
        assert is_dataclass(table)
        assert (table.__doc__ or "").startswith(f"[{name}]: ")
        for key in keys_of(table):
            assert key.doc, f"{name}.{key.name}"
            assert key.inside == key.name + key.kind.suffix


def test_settings_validate_against_their_schema() -> None:
    import tomllib

    validator = jsonschema.Draft202012Validator(schemas()["settings"])
    for text in (GATEWAY, REGION, *(sample(r, id="n", broker="mqtt://a", parent="p") for r in ROLES)):
        validator.validate(json.loads(json.dumps(tomllib.loads(text))))


def test_a_label_that_the_sensor_lacks_is_worth_a_note() -> None:
    text = GATEWAY + '[sensor.own]\ndriver = "host"\n[query.own]\nsource = "own"\naggregates = ["avg"]\nby = ["site"]\n'
    said = notes(parse(text + 'window = {type = "tumbling", length = "1m"}\n'))
    assert [line for line in said if line.startswith('query "own", by: sensor "own" has no label "site"')]


@pytest.mark.parametrize(
    ("written", "is_one"),
    [
        *(("dbfs:/hw/tables", True), ("file:/srv/tables", True), ("file:///srv/tables", True), ("s3://x/y", True)),
        *(("wasbs:/x", True), ("tables", False), ("./a:/b", False), ("c:/tables", False), ("/Volumes/main/x", False)),
    ],
)
def test_tables_at_a_uri_with_one_slash_are_there(tmp_path: Path, written: str, is_one: bool) -> None:
    """They were in a folder `dbfs:` beside the file, on the disk of the driver."""
    file = tmp_path / "root.toml"
    file.write_text(f'[node]\nid="root"\nrole="root"\n[lower]\nbroker="mqtt://a"\n[root]\ntables="{written}"')
    assert load(file).root.tables == (written if is_one else str(tmp_path / written))


@pytest.mark.parametrize("written", ["s3://bucket/landing", "dbfs:/landing", "file:/srv/landing"])
def test_landing_files_at_a_uri_are_refused(tmp_path: Path, written: str) -> None:
    """The lander wrote them to a folder `s3:` beside the file, where no root looked."""
    file = tmp_path / "root.toml"
    file.write_text(f'[node]\nid="root"\nrole="root"\n[lower]\nbroker="mqtt://a"\n[lander]\nfolder="{written}"')
    with pytest.raises(ConfigError, match=r"lander\.folder = .* is a URI, and landing files are in a folder"):
        load(file)
