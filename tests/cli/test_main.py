"""The front of the command line: quick, one line an error, exit codes as documented."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_agent import __version__
from edge_agent.cli import main as front
from edge_agent.config.node_file.settings import load
from edge_agent.errors import ConfigError, PortError


@dataclass
class Failing:
    """A verb that only raises."""

    error: BaseException
    HELP: str = "fails"
    EXAMPLES: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    def main(self, args: argparse.Namespace) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConfigError("headwater.toml:3 no such key: windw\nheadwater.toml:4 no unit"), 2, 2),
        (PortError("no broker at 127.0.0.1:1: is Mosquitto running?"), 3, 1),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"), 3, 1),
        (KeyboardInterrupt(), 130, 0),
    ],
)
def test_what_goes_wrong_is_a_line_each_and_an_exit_code(
    error: BaseException,
    code: int,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(front, "load", lambda name: Failing(error))
    assert front.main(["run"]) == code
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == lines
    assert all(line.startswith("headwater: ") for line in err.splitlines())


def test_a_missing_library_of_the_cloud_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ModuleNotFoundError("No module named 'deltalake'", name="deltalake")
    monkeypatch.setattr(front, "load", lambda name: Failing(missing))
    front.main(["query"])
    assert "in a checkout of Headwater: pip install '.[cloud]'" in capsys.readouterr().err
    missing = ModuleNotFoundError("No module named 'cryptography'", name="cryptography")
    front.main(["ca"])
    assert "pip install '.[ca]', or on Debian: apt install python3-cryptography" in capsys.readouterr().err


def test_a_missing_module_of_our_own_is_a_bug_and_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'edge_agent.nowhere'", name="edge_agent.nowhere")
    monkeypatch.setattr(front, "load", lambda name: Failing(missing))
    with pytest.raises(ModuleNotFoundError):
        front.main(["run"])


def test_wrong_options_exit_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "load", lambda name: Failing(ValueError()))
    with pytest.raises(SystemExit) as left:
        front.main(["run", "--no-such-option"])
    assert left.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [(["qery"], "did you mean query?"), (["--verbose"], "no such verb: --verbose"), (["zzz"], "no such verb: zzz")],
)
def test_a_verb_that_is_none_is_refused_with_the_nearest(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_a_verb_it_shows_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in front.VERBS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["--version"]) == 0
    assert capsys.readouterr().out == f"headwater {__version__}\n"


def test_help_loads_nothing_that_a_gateway_pays_for() -> None:
    script = (
        "import sys\nfrom edge_agent.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'cbor2', 'paho', 'sqlite3', 'ssl', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_m_edge_agent_is_the_same_front() -> None:
    done = subprocess.run([sys.executable, "-m", "edge_agent", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"headwater {__version__}\n"


@pytest.mark.parametrize("words", [["--version"], ["init", "-"], ["--help"], ["query", "--help"]])
def test_a_closed_or_full_output_gives_no_traceback(words: list[str]) -> None:
    command = f"unset PYTHONUNBUFFERED; exec {sys.executable} -m edge_agent {' '.join(words)}"
    for to, codes in ((">&-", {0}), (">/dev/full", {0, 3})):
        done = subprocess.run(["sh", "-c", f"{command} {to}"], capture_output=True, text=True, check=False)
        assert done.returncode in codes, done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == (done.returncode != 0)


def test_a_file_to_start_from_needs_no_docstrings(tmp_path: Path) -> None:
    """`python -OO` leaves them out, and the lines about the tables with them."""
    written = tmp_path / "headwater.toml"
    command = [sys.executable, "-OO", "-m", "edge_agent", "init", "--id", "a", str(written)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).stderr == b""
    load(written)


def test_a_closed_error_output_does_not_end_a_command(tmp_path: Path) -> None:
    sensor = '{"id": "s", "driver": "simulated"}'
    query = '{"id": "q", "source": "s", "window": {"type": "tumbling", "length": "10s"}, "aggregates": ["avg"]}'
    for name, text in (("sensor.json", sensor), ("query.json", query)):
        (tmp_path / name).write_text(text)
    command = f"exec {sys.executable} -m edge_agent simulate {tmp_path}/sensor.json {tmp_path}/query.json 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 4


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_cannot_show_is_escaped_as_in_json(encoding: str, tmp_path: Path) -> None:
    """It ended in a traceback; a file of `init` was in the encoding of the terminal, and refused by `check`."""
    env = {**os.environ, "PYTHONIOENCODING": encoding}

    def output(*words: str | bytes) -> bytes:
        command = [sys.executable, "-m", "edge_agent", *words]
        return subprocess.run(command, env=env, capture_output=True, check=True, cwd=tmp_path).stdout

    made = output("init", "-", "--id", "a")
    assert "°C" in made.decode()
    name = b"caf\xc3\xa9-\xff.toml"
    (tmp_path / os.fsdecode(name)).write_bytes(made)
    (checked,) = json.loads(output("check", "--json", name).decode(encoding))
    assert checked["file"] == os.fsdecode(name)


def test_init_never_takes_the_place_of_a_device_or_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`headwater init --force /dev/null`, as root, made a plain file of the machine's /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert front.main(["init", "--force", str(pipe)]) == 2
    assert pipe.is_fifo()
    why = "is no plain file, but a device, pipe or socket; name another"
    assert capsys.readouterr().err == f"headwater: {pipe} {why}\n"


def test_init_force_writes_the_file_that_a_link_names(tmp_path: Path) -> None:
    """The link was replaced, and the file that a service reads stayed as it was."""
    link, named = tmp_path / "link.toml", tmp_path / "etc" / "headwater.toml"
    named.parent.mkdir()
    link.symlink_to(named)
    for words in (["--id", "a"], ["--id", "b", "--force"]):  # a new file, an existing one
        assert front.main(["init", *words, str(link)]) == 0
        assert link.is_symlink()
        assert load(named).node.id == words[1]


def test_init_takes_a_file_name_with_a_line_break(tmp_path: Path) -> None:
    named = tmp_path / "a\nb.toml"
    assert front.main(["init", "--id", "a", str(named)]) == 0
    assert load(named).node.id == "a"


@pytest.mark.parametrize("words", [["broker-config", "b"], ["query", "--tables", "t"]])
def test_a_current_folder_that_was_deleted_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    try:
        assert front.main(words) == 3
    finally:
        tmp_path.mkdir()  # monkeypatch goes back from it
    assert capsys.readouterr().err == "headwater: the current folder was deleted; go to another one\n"


def test_temporary_files_that_cannot_be_written_are_not_a_folder_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk, of `audit`, `replay --root spark` and `query --engine spark`."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    monkeypatch.setattr(front, "_verb", lambda _words: tempfile.mkdtemp())
    assert front.main(["query"]) == 3
    why = "no folder for temporary files can be written; free some space, or set TMPDIR"
    assert capsys.readouterr().err == f"headwater: {why}\n"


def test_a_settings_file_that_may_not_be_seen_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `sudo -u headwater headwater query` in /root: the former test for the file raised PermissionError."""

    def closed(path: object, *_args: object, **_options: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.delenv("HEADWATER_TABLES", raising=False)
    monkeypatch.setattr(os, "stat", closed)
    assert front.main(["query"]) == 2
    assert capsys.readouterr().err.startswith("headwater: no folder of tables: ")
