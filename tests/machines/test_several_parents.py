"""A node with several parents: which of them it uses, and whose answers count (protocol 1.5)."""

from __future__ import annotations

from edge_agent.algebra.frame import JOURNAL_LOST, Gap, Receipt
from edge_agent.machines.events import Beat, ClockChanged, LinkUp, Receipted, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.uplink.outbox import OLD_RECEIPTS
from tests.support.machines.simulated_host import T0, Disk, S, SimulatedHost, gateway_host, read

OF_A, OF_B = 7, 8  # their journals
SETTINGS = NodeSettings("a", parents=("A", "B"), away_us=120 * S, back_us=300 * S)


class Site:
    """A gateway with two parents, which answer each second while they are in `answering`."""

    def __init__(self, disk: Disk | None = None, now_us: int = T0) -> None:
        self.host: SimulatedHost[Gateway] = gateway_host(disk, now_us, settings=SETTINGS)
        self.box = self.host.machine.outbox
        self.journals = {"A": OF_A, "B": OF_B}
        self.answering: set[str] = {"A", "B"}
        self.now_us = now_us
        self.host.do(LinkUp(), now_us)

    def run(self, seconds: int, *, readings: bool = True) -> None:
        for _ in range(seconds):
            self.now_us += S
            known = len(self.host.done)
            if readings:
                read(self.host, self.now_us, 1, self.now_us)
            self.host.do(Tick(), self.now_us)
            for action in self.host.done[known:]:  # questions of either kind
                if isinstance(action, Beat) and (to := action.to or self.box.parent) in self.answering:
                    self.host.do(Receipted(Receipt(action.heartbeat.epoch, self.journals[to], 0)), self.now_us)
            for parent, line in self.box.former_lines.lines.items():
                if parent in self.answering:
                    self._receipts(parent, line.pending.epochs())
            if self.box.parent in self.answering and self.box.journal is not None:
                self._receipts(self.box.parent, {self.box.epoch} | self.box.pending.epochs())
            if self.box.parent != self.host.machine.wanted or not self.box.link_up:
                self.host.do(LinkUp(), self.now_us)

    def _receipts(self, parent: str, epochs: set[int]) -> None:
        for epoch in sorted(epochs):
            sent = [seq for of, seq in self.host.disk.frames if of == epoch and self.host.disk.frames[of, seq][1]]
            self.host.do(Receipted(Receipt(epoch, self.journals[parent], max(sent, default=-1) + 1)), self.now_us)

    def declared(self, known: int) -> list[Gap]:
        """The gap records in frames since the frame number `known`."""
        return [gap for frame in self.host.frames[known:] for gap in frame.gaps]


def test_a_late_answer_to_a_question_is_not_taken_for_a_new_journal_of_the_present_parent() -> None:
    """protocol 1.5, 3.7: whatever epoch has begun since the node asked."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(200)
    assert (site.box.parent, site.box.journal) == ("B", OF_B)
    old = next(iter(site.box.former_lines.lines["A"].pending.epochs()))
    asked = [action.heartbeat.epoch for action in site.host.done if isinstance(action, Beat) and action.to == "A"][-1]
    for _ in range(3):  # A has an empty disk: what was sent to it is in doubt
        site.host.do(Receipted(Receipt(old, 70, 0)), site.now_us)
    site.run(5)
    assert site.box.former_lines.lines == {}
    known = len(site.host.frames)
    site.host.do(Receipted(Receipt(asked, 70, 0)), site.now_us)
    site.run(5)
    assert site.box.journal == OF_B
    assert [gap for gap in site.declared(known) if gap.reason == JOURNAL_LOST] == []


def test_an_answer_that_names_no_frame_of_this_node_says_nothing_about_the_present_parent() -> None:
    """protocol 1.5: it may answer a process before this one; the node has left no parent yet."""
    site = Site()
    site.run(5)
    site.host.do(Receipted(Receipt(12345, 70, 0)), site.now_us)
    site.run(1)
    assert site.box.journal == OF_A
    site.host.do(Receipted(Receipt(site.box.epoch, 70, 0)), site.now_us)
    assert site.box.journal == 70


def test_a_restored_copy_of_a_parent_is_recognised_by_a_node_that_had_left_it_and_came_back() -> None:
    """protocol 3.7: its journal is that of a former line, and several receipts of it are not late."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(130)
    assert site.box.parent == "B"
    site.answering = {"A", "B"}
    site.run(400)
    assert (site.box.parent, site.box.journal) == ("A", OF_A)
    site.journals["A"] = 9  # its disk is lost
    site.run(10)
    assert site.box.journal == 9
    for _ in range(OLD_RECEIPTS):  # and is restored from a copy
        assert site.box.journal == 9
        site.host.do(Receipted(Receipt(site.box.epoch, OF_A, 0)), site.now_us)
    assert site.box.journal == OF_A


def test_a_step_of_the_clock_is_no_time_in_which_the_parent_was_silent() -> None:
    """protocol 1.5"""
    site = Site()
    site.run(5)
    read(site.host, site.now_us + S, 1, site.now_us + S)
    site.host.do(Tick(), site.now_us + S)
    assert site.box.owed
    step_us = 3600 * S
    event = ClockChanged(known=True, boot="", offset_us=step_us, by_us=step_us)
    site.host.do(event, site.now_us + S + step_us)
    assert site.host.machine.wanted == "A"
