"""`headwater check` and `headwater init`, as typed."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.main import main

BAD = '[node]\nid = "press-1"\n[uplink]\nbroker = "mqtt://127.0.0.1"\nhartbeat = "1s"\nkeepalive = 30\n'
QUERY = 'source = "b"\naggregates = ["avg"]\nwindow = { type = "tumbling", length = "1m" }\n'


@pytest.mark.parametrize("role", ["gateway", "region", "root"])
def test_what_init_writes_passes_the_check(role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "headwater.toml")
    assert main(["init", file, "--role", role, "--id", "n-1"]) == 0
    assert "headwater check" in capsys.readouterr().out
    assert main(["check", file]) == 0
    assert "all right" in capsys.readouterr().out


def test_init_overwrites_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headwater.toml").write_text("mine")
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "headwater.toml").read_text() == "mine"
    assert main(["init", "--force"]) == 0
    assert main(["check"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["headwater.toml"]


def test_init_refuses_what_makes_no_right_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "x.toml"), "--id", "Press 1", "--broker", "nowhere"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert not (tmp_path / "x.toml").exists()
    assert main(["init", str(tmp_path / "none" / "x.toml"), "--id", "a"]) == 2


def test_init_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-", "--id", "a"]) == 0
    assert '[sensor.host]\ndriver = "host"' in capsys.readouterr().out


SENSOR = 'driver = "file"\npath = "a.csv"\n'
ROOT = '[node]\nid = "top"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n[root]\nhorizon = "1h"\n'
SESSIONS = 'source = "b"\naggregates = ["avg"]\nwindow = { type = "session", gap = "2h" }\n'


@pytest.mark.parametrize(
    ("text", "more", "code", "said"),
    [
        ('[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1:9"\n', (), 0, "gateway a"),
        (SENSOR, (), 0, "a sensor named"),
        (SENSOR, ("--as", "sensor"), 0, "a sensor named"),
        (BAD, (), 2, "2 mistakes"),
        (SESSIONS, ("root",), 2, "1 mistake"),
    ],
)
def test_check_reads_a_pipe_as_it_reads_a_file(
    text: str, more: tuple[str, ...], code: int, said: str, *, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shell: headwater check <(make-a-sensor). Nothing is left in it for a second look."""
    (tmp_path / "root.toml").write_text(ROOT)
    out, into = os.pipe()
    os.write(into, text.encode())
    os.close(into)
    try:
        options = [str(tmp_path / "root.toml") if each == "root" else each for each in more]
        assert main(["check", f"/dev/fd/{out}", *options]) == code
    finally:
        os.close(out)
    got = capsys.readouterr()
    assert f"/dev/fd/{out}: {said}" in got.out + got.err


def test_check_names_every_mistake_and_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(BAD)
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    why = "wanted a duration with its unit, got a number"
    assert said.err.splitlines() == [
        f'{file}:5  uplink: unknown key "hartbeat"; did you mean "heartbeat"?',
        f'{file}:6  uplink.keepalive = 30: {why}; add the unit: "30s" or "30ms"',
        f"{file}: 2 mistakes",
    ]


def test_check_reads_sensors_and_queries_by_their_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "boiler-1m.toml").write_text(QUERY)
    (tmp_path / "boiler.json").write_text('{"driver": "host"}')
    assert main(["check", str(tmp_path / "boiler-1m.toml"), str(tmp_path / "boiler.json")]) == 0
    out = capsys.readouterr().out
    assert "a query named boiler-1m, all right" in out
    assert "a sensor named boiler, all right" in out
    (tmp_path / "boiler-1m.toml").write_text(QUERY.replace("avg", "mean"))
    assert main(["check", str(tmp_path / "boiler-1m.toml")]) == 2
    assert 'boiler-1m.toml:2  aggregates[0]: unknown function "mean"' in capsys.readouterr().err


def test_a_recording_is_told_where_it_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text('{"queries": [], "streams": {"a": []}}')
    assert main(["check", str(tmp_path / "r.json")]) == 2
    assert "headwater replay" in capsys.readouterr().err


@pytest.mark.usefixtures("without_counts")
def test_what_is_not_supported_yet_is_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.toml").write_text(QUERY.replace('"tumbling", length = "1m"', '"count_tumbling", length = 5'))
    assert main(["check", str(tmp_path / "q.toml")]) == 3
    assert "not supported yet" in capsys.readouterr().err


def test_check_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edge.toml").write_text(BAD)
    assert main(["check", "--json", str(tmp_path / "edge.toml"), str(tmp_path / "none.toml")]) == 2
    bad, none = json.loads(capsys.readouterr().out)
    assert (bad["ok"], [p["line"] for p in bad["problems"]], bad["problems"][0]["hint"]) == (False, [5, 6], "heartbeat")
    assert "no such file" in none["problems"][0]["text"]


def test_check_connect_looks_for_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        file = tmp_path / "edge.toml"
        file.write_text(f'[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1:{port}"\n')
        assert main(["check", "--connect", str(file)]) == 0
    file.write_text(
        f'[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1:{port}"\nuser = "a"\npassword_file = "p"\n'
    )
    capsys.readouterr()
    assert main(["check", "--connect", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"password_file: {tmp_path / 'p'} does not exist" in said
    assert "connection refused" in said


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[[[", b"{" * 1000, b"x" * 2_000_000])
def test_no_content_breaks_the_check(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(content)
    assert main(["check", str(tmp_path / "x.toml")]) == 2
    assert main(["check", "--as", "query", str(tmp_path / "x.toml")]) == 2


@pytest.fixture
def closed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has an empty folder, and one of another user: nothing in it can be looked at."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = Path("closed")
    refused = PermissionError(errno.EACCES, "Permission denied")
    for name in ("stat", "open", "read_bytes", "touch", "write_text"):
        real = getattr(Path, name)

        def method(self: Path, *args: Any, real: Any = real, **named: Any) -> Any:
            if folder in self.parents:
                raise refused
            return real(self, *args, **named)

        monkeypatch.setattr(Path, name, method)


@pytest.mark.usefixtures("closed_folder")
@pytest.mark.parametrize("kind", [(), ("--as", "query"), ("--as", "sensor"), ("--as", "settings")])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", '"" is no file; give the name of one'),
        ("none.toml", "no such file or directory"),
        ("folder", "is a directory; name a file in it"),
        ("x" * 300, "file name too long"),
        ("closed/a.toml", "permission denied; is it readable for this user?"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_line(
    name: str, why: str, kind: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *kind, name]) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert why in first
    assert name in first
    assert last == f"{name or chr(34) * 2}: 1 mistake"
    assert main(["check", "--json", *kind, name]) == 2
    (told,) = json.loads(capsys.readouterr().out)
    assert why in told["problems"][0]["text"]


def test_an_empty_definition_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text("")
    assert main(["check", "--as", "query", str(tmp_path / "x.toml")]) == 2
    assert f"{tmp_path / 'x.toml'}  empty" in capsys.readouterr().err


def test_check_takes_a_file_for_what_it_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "boiler-1m.toml").write_text(QUERY)
    assert main(["check", "--as", "settings", str(tmp_path / "boiler-1m.toml")]) == 2
    assert "[node] is missing" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"driver": "host", "every": N}', "driver = 'host'\nevery = N"])
def test_a_number_of_thousands_of_digits_is_not_the_users_programming(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text(text.replace("N", "9" * 5000))
    assert main(["check", str(tmp_path / "x.toml")]) == 2
    err = capsys.readouterr().err
    assert "digits" in err
    assert "sys." not in err


def test_check_connect_says_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").mkdir()
    file = tmp_path / "edge.toml"
    file.write_text('[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1:1"\nuser = "a"\npassword_file = "p"\n')
    assert main(["check", "--connect", str(file)]) == 1
    assert f"password_file: {tmp_path / 'p'} is a directory, not a file" in capsys.readouterr().err
    (tmp_path / "p").rmdir()
    (tmp_path / "p").write_bytes("hüterin".encode("latin-1"))
    assert main(["check", "--connect", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"password_file: {tmp_path / 'p'} cannot be used: the password is not text in UTF-8" in said
    assert "terin" not in said


def test_check_connect_looks_for_the_files_of_sensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "edge.toml"
    sensors = "".join(f'[sensor.{name}]\ndriver = "file"\npath = "{name}.csv"\n' for name in ("there", "gone"))
    file.write_text(f'[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1:1"\n{sensors}')
    (tmp_path / "there.csv").touch()
    assert main(["check", "--connect", str(file)]) == 1
    said = capsys.readouterr().err
    assert f'sensor "gone": {tmp_path / "gone.csv"} does not exist' in said
    assert "there.csv" not in said


@pytest.mark.usefixtures("closed_folder")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--force", "."], ". is a directory; name a file in it"),
        (["folder"], "folder is a directory; name a file in it"),
        (["closed/x.toml"], "closed/x.toml: permission denied; name a file in a folder you may write"),
        (["--force", "closed/x.toml"], "closed/x.toml: permission denied; name a file in a folder you may write"),
        (["x" * 300], "file name too long; name a file in a folder you may write"),
        (["--id", ""], "--id is empty; name the node, or leave --id out"),
        (["--role", "root", "--parent", "x"], "a root has no parent; leave --parent out, or choose another --role"),
    ],
)
def test_init_says_in_a_line_why_it_writes_nothing(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"{why}\n")
    assert len(said.err.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_the_file_for_the_image_is_named_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Wi-Fi password and a token are written into it."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--for-image", "-", "--id", "a"]) == 0
    assert "--config gateway.toml" in capsys.readouterr().out
    assert main(["init", "--for-image", "--id", "a"]) == 0
    assert (tmp_path / "gateway.toml").stat().st_mode & 0o777 == 0o600
    before = os.umask(0o022)
    try:
        assert main(["init", "--id", "a"]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "headwater.toml").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", [["init", "-", "--id", "a"], ["check", "edge.toml"]])
def test_a_full_disk_is_a_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text('[node]\nid = "a"\n[uplink]\nbroker = "mqtt://127.0.0.1"\n')
    command = [sys.executable, "-m", "edge_agent", *words]
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=paths, stdout=full, stderr=subprocess.PIPE, text=True
        )
    said = "headwater: cannot write: no space left on device; free some space\n"
    assert (done.returncode, done.stderr) == (3, said)


@pytest.mark.parametrize("text", [QUERY, 'driver = "host"\n'])
def test_an_unknown_key_is_told_every_key_there_is(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text(f"zzzzzzzz = 1\n{text}")
    assert main(["check", str(tmp_path / "x.toml")]) == 2
    _, _, known = capsys.readouterr().err.splitlines()[0].partition("known here: ")
    assert {"id", "revision", "nodes", "removed"} < set(known.split(", "))


def _tier(role: str, name: str, tables: str) -> str:
    return f'[node]\nid = "{name}"\nrole = "{role}"\n{tables}'


@pytest.mark.parametrize(
    ("region_grace", "delay", "wrong"),
    [("10m", "0s", ""), ("10m", "30m", "region"), ("32m", "30m", "root"), ("20s", "0s", "region"), ("2m", "0s", "")],
)
def test_a_grace_that_is_shorter_than_what_is_below_may_be_silent_is_a_mistake(
    region_grace: str, delay: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """protocol 4.4"""
    uplink = '[uplink]\nbroker = "mqtt://127.0.0.1"\n'
    lower = '[lower]\nbroker = "mqtt://127.0.0.1:2"\n'
    texts = {
        "root": _tier("root", "root", f'{lower}grace = "11m"\ntiers = 2\n'),
        "region": _tier("region", "region-1", f'{uplink}{lower}grace = "{region_grace}"\ntiers = 1\n'),
        "press": _tier(
            "gateway",
            "press-1",
            f'{uplink}parent = "region-1"\nheartbeat = "10s"\n[sensor.a]\n{SENSOR}delay = "{delay}"\n',
        ),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    files = [str(tmp_path / f"{name}.toml") for name in texts]
    assert [main(["check", file]) for file in files] == [0, 0, 0]  # each alone is right
    assert main(["check", *files]) == (2 if wrong else 0)
    mistakes = [line for line in capsys.readouterr().err.splitlines() if "may be silent" in line]
    assert [wrong] * len(mistakes) == [Path(line.split(":")[0]).stem for line in mistakes]
    assert len(mistakes) == bool(wrong)


def test_regions_whose_parents_lead_back_to_them_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """protocol 1.5: three regions, of which each alone is right; a fourth below them is right, too."""
    lower = '[lower]\nbroker = "mqtt://127.0.0.1:2"\n'
    parents = {"a": ["root", "b"], "b": ["root", "c"], "c": ["a"], "d": ["a", "c"]}
    files = []
    for name, of in parents.items():
        files.append(tmp_path / f"{name}.toml")
        uplink = f'[uplink]\nbroker = "mqtt://127.0.0.1"\nparents = {json.dumps(of)}\n'
        files[-1].write_text(_tier("region", name, f"{uplink}{lower}tiers = 1\n"))
    for file in files:
        assert main(["check", str(file)]) == 0
    main(["check", *map(str, files[:2])])
    assert "in a circle" not in capsys.readouterr().err
    assert main(["check", *map(str, files)]) == 2
    mistakes = [line for line in capsys.readouterr().err.splitlines() if "in a circle" in line]
    assert [Path(line.split(":")[0]).stem for line in mistakes] == ["a", "b", "c"]
    assert "a to b to c to a" in mistakes[0]


def test_nothing_in_a_file_or_its_name_controls_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a\x1b[31m.toml"
    file.write_text('[node]\nid = "g1"\n"a\\u001b[31mb" = 3\n[uplink]\nbroker = "mqtt://x"\n"\\u009bm" = 1\n')
    assert main(["check", str(file)]) == 2
    assert main(["init", str(tmp_path / "none\x1b[31m" / "x.toml")]) == 2
    said = capsys.readouterr()
    assert "unknown key" in said.err
    assert all(line.isprintable() for line in (said.out + said.err).splitlines())


def test_an_id_that_is_no_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--id", "\udcff", "-"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/dev/zero"]) == 2
    assert "more than 100MB" in capsys.readouterr().err
