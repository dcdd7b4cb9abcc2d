"""What passes a broker is fields right, and nothing that passes can stop the telling."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    Birth,
    Define,
    ExcludedLeaf,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Receipt,
    Section,
)
from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.sketches import hll, kll, theta
from edge_agent.cli import peek
from edge_agent.cli.main import main
from edge_agent.cli.peek import KINDS
from edge_agent.cli.support.message_rendering import SHOWN, SHOWN_BYTES, MessageRenderer, clock, line
from edge_agent.config import topics
from edge_agent.wire import frames, receipts

SECOND = 1_000_000
NINE = 1_795_424_400 * SECOND  # 2026-11-23T09:00:00Z
GROUP = Group("boiler", "", ("site",), 0)
PLAN = Plan(b"12345678", "slice", ("count", "sum"), None, SECOND, (("boiler-1s", 1),))
FRAMES = topics.frames("press-1", "region-1")


@pytest.mark.parametrize("count", ["0", "-1", "", "many", "1.5", "²", "9" * 5_000])
def test_peek_refuses_a_count_of_no_messages_in_one_line(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["peek", f"--count={count}"])
    assert ended.value.code == 2
    assert "is not a whole number above 0" in capsys.readouterr().err.splitlines()[-1]


def partials(first: int) -> Partials:
    start = np.array([first], np.int64)
    states = {"count": np.array([3], np.int64), "sum": np.array([4.5])}
    return Partials(start, start + SECOND, np.zeros(1, np.int64), states)


def born() -> Frame:
    return Frame(
        epoch=0x11112222,
        seq=0,
        birth=Birth(0x1111222233334444, 7, (0xABCD, 41), "0.1.0"),
        define=Define(keys=(0, ("site=a",)), groups=((0, GROUP),), plans=((0, 0, PLAN),)),
        members=(Members(0, (Leaf("press-1", 0x11112222),)),),
        groups=(
            GroupPart(
                0,
                NINE,
                sections=(Section(0, partials(NINE - SECOND)),),
                late=(Section(0, partials(NINE - 9 * SECOND)),),
                exceptions=(ExcludedLeaf("press-9", NINE - SECOND, NINE - SECOND),),
            ),
        ),
        gaps=(Gap((GROUP,), NINE - 9 * SECOND, NINE - 8 * SECOND, -1, ("press-1",), "stopped"),),
    )


def test_a_frame_is_fields_with_what_is_in_it() -> None:
    text = line(MessageRenderer().render(FRAMES, frames.encode(born())))
    assert text.startswith("press-1          frame      11112222/0 to region-1, ")
    for part in (
        "birth of 0.1.0 after 0000abcd/41",
        "boiler[site] serves 1 leaves",
        "boiler[site]: 1 rows, 1 late, up to 2026-11-23T09:00:00.000Z, without press-9",
        "LOST 2026-11-23T08:59:51.000Z to 2026-11-23T08:59:52.000Z: stopped",
    ):
        assert part in text


def test_rows_have_their_columns_and_keys_by_name_once_the_definitions_were_heard() -> None:
    renderer = MessageRenderer(rows=True)
    frame = Frame(0x11112222, 1, groups=(GroupPart(0, NINE + SECOND, (Section(0, partials(NINE)),)),))
    before = renderer.render(FRAMES, frames.encode(frame))["groups"][0]
    assert before["group"] == "group 0"
    assert before["partials"][0]["key"] == 0
    renderer.render(FRAMES, frames.encode(born()))
    after = renderer.render(FRAMES, frames.encode(frame))["groups"][0]
    assert after["group"] == "boiler[site]"
    assert after["partials"] == [
        {"start": clock(NINE), "end": clock(NINE + SECOND), "key": "site=a", "count": 3, "sum": 4.5}
    ]


def test_rows_of_values_readings_and_sketches_are_lines_and_json() -> None:
    """Of sketches the first bytes: they are up to some kilobytes long."""
    values, whole = np.array([1.5, 2.5, 2.5]), Segments.runs(np.zeros(1, np.int64), 3)
    columns = {
        "bag": multisets.lift(values, whole),
        "series": series.lift(NINE + np.arange(3), values, 0, np.arange(3), whole),
        "kll": kll.lift(values, whole),
        "hll": hll.lift(values, whole),
        "theta": theta.lift(values, whole),
    }
    start = np.array([NINE], np.int64)
    rows = Partials(start, start + SECOND, np.zeros(1, np.int64), {"count": np.array([3]), **columns})
    plan = Plan(b"12345678", "slice", ("count", *columns), None, SECOND, (("boiler-1s", 1),))
    first = Frame(
        1, 0, birth=Birth(1 << 32, 2, None, "0.1.0"), define=Define(groups=((0, GROUP),), plans=((0, 0, plan),))
    )
    renderer = MessageRenderer(rows=True)
    renderer.render(FRAMES, frames.encode(first))
    fields = renderer.render(FRAMES, frames.encode(Frame(1, 1, groups=(GroupPart(0, NINE, (Section(0, rows),)),))))
    shown = fields["groups"][0]["partials"][0]
    assert shown["bag"] == {"values": [1.5, 2.5], "counts": [1, 2]}
    assert shown["series"] == {"times": [clock(NINE)] * 3, "values": [1.5, 2.5, 2.5], "nodes": [0, 0, 0]}
    assert shown["kll"] == columns["kll"][0][:SHOWN_BYTES].hex() + "…"
    assert json.loads(json.dumps(fields)) == fields
    assert '"counts": [1, 2]' in line(fields)


def test_heartbeats_and_receipts_are_fields() -> None:
    renderer = MessageRenderer()
    renderer.render(FRAMES, frames.encode(born()))
    beat = renderer.render(FRAMES, frames.encode_heartbeat(Heartbeat(0x11112222, 5, ((0, NINE),))))
    assert beat["kind"] == "heartbeat"
    assert "boiler[site] at 2026-11-23T09:00:00.000Z" in line(beat)
    receipt = renderer.render(topics.ack("press-1"), receipts.encode(Receipt(0x11112222, 7, 5, ((7, 9),), (3,))))
    assert "11112222 all below 5, and [[7, 9]], quarantined [3]" in line(receipt)


def test_a_flush_says_what_it_ends_and_which_epoch_follows() -> None:
    fields = MessageRenderer().render(FRAMES, frames.encode(Frame(0x11112222, 7, flush=Flush(6, 0x33334444))))
    assert (fields["flush"], fields["successor"]) == (6, "33334444")
    assert "flush after 6, then epoch 33334444" in line(fields)


def test_states_and_definitions_are_fields_as_they_are() -> None:
    renderer = MessageRenderer()
    assert '{"online": true}' in line(renderer.render(topics.status("press-1"), b'{"online":true}'))
    fields = renderer.render(topics.definition("query", "boiler-1s"), b"")
    assert line(fields).endswith("query/boiler-1s = (removed)")
    commanded = line(renderer.render(topics.commands_to_all(), b'{"cmd": "mark", "id": "m1"}'))
    assert commanded.split(maxsplit=2) == ["all", "cmd", '{"cmd": "mark", "id": "m1"}']


def test_control_characters_do_not_reach_the_terminal() -> None:
    fields = MessageRenderer().render(topics.definition("query", "x"), b"a\x1b[2Jb\nc")
    assert "\x1b" not in line(fields)
    assert "\n" not in line(fields)


@given(
    topic=st.sampled_from(
        [
            *(topics.status("n"), topics.state("n"), topics.books("n"), topics.ack("n"), topics.commands("n")),
            *(FRAMES, "hw/1/x", "hw/2/y"),
        ]
    ),
    payload=st.one_of(st.binary(max_size=60), st.builds(lambda cut: frames.encode(born())[:cut], st.integers(0, 200))),
)
def test_whatever_passes_is_fields_in_one_line_and_as_json(topic: str, payload: bytes) -> None:
    fields = MessageRenderer(rows=True).render(topic, payload)
    assert "\n" not in line(fields)
    assert json.loads(json.dumps(fields)) == fields


def test_times_that_no_calendar_has_are_numbers() -> None:
    assert clock(None) is None
    assert clock(-(2**62)) == "-"
    assert clock(2**61) == f"{2**61} us"


def test_every_kind_that_is_printed_can_be_chosen() -> None:
    for topic in (topics.books("a"), topics.status("a"), topics.state("a")):
        assert MessageRenderer().render(topic, b"{}")["kind"] in KINDS


def test_nothing_in_a_frame_controls_the_terminal() -> None:
    """Neither as text nor as JSON; json.dumps escapes only the first 32 characters, not those from 0x80 on."""
    group = Group("boiler\x1b[2J", "", ("site\x9b2J",), 0)
    frame = Frame(
        epoch=1,
        seq=0,
        birth=Birth(1 << 32, 2, None, "0.1\x1b]0;owned\x07"),
        define=Define(groups=((0, group),), plans=(), keys=(0, ("a\x9b31m\r\nb",))),
        groups=(GroupPart(0, NINE),),
        gaps=(Gap((group,), 0, 1, 0, ("gw-1",), "restart\x1b[31m\nhw OK  all fine"),),
    )
    fields = MessageRenderer(rows=True).render(FRAMES, frames.encode(frame))
    for text in (line(fields), json.dumps(fields, ensure_ascii=False)):
        assert text.isprintable()
        assert "hw OK  all fine" in text


def test_a_long_line_ends_with_how_to_see_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state of a region of 10 000 gateways is 900 kB: it was one line."""
    content = json.dumps({f"press-{n}": "silent" for n in range(20_000)})
    message = (topics.state("press-1"), content.encode(), 1, True)
    monkeypatch.setattr(peek, "listen", lambda *_: iter([message]))
    texts = {}
    for option in ("", "--rows", "--json"):
        assert main(["peek", *([option] if option else [])]) == 0
        texts[option] = capsys.readouterr().out.strip()
    begin, _, rest = texts[""].partition(" … ")
    assert len(begin) < SHOWN + 20
    assert rest == f"{len(texts['--rows']) - len(begin)} more characters; --json prints them all"
    assert json.loads(texts["--json"])["content"] == json.loads(content)


@pytest.mark.parametrize(
    ("name", "why"), [("gw-\udcff", "is not text in UTF-8"), ("\u00e4" * 40_000, "is longer than 65535 bytes")]
)
@pytest.mark.parametrize("verb", ["peek", "status", "audit"])
def test_a_user_that_mqtt_cannot_have_is_one_line(
    capsys: pytest.CaptureFixture[str], verb: str, name: str, why: str
) -> None:
    """It ended the command with a traceback once the broker was reached."""
    with pytest.raises(SystemExit) as ended:
        main([verb, "--user", name, "--broker", "mqtt://127.0.0.1:1", "--seconds", "1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"argument --user: the name {why}\n")
