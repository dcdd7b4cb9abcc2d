"""Fleets whose mergers lose their spools: what is lost is declared, nothing counts twice, nobody is mute (3.7)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from edge_agent.algebra.frame import JOURNAL_LOST
from edge_agent.machines.events import Note
from edge_agent.root.numpy.rows import Row
from tests.support.simulation.fleets import START, Fleet
from tests.support.simulation.limits import drawn
from tests.support.simulation.spools import Stored
from tests.support.simulation.world import SECOND, Chaos, MergerHost
from tests.support.tolerance import close

CHANGED = "parent.journal_changed"
RECOVERED_US = 25 * SECOND  # a grace time, the next births, and lateness


class JournalFleet(Fleet):
    """Some mergers lose their spools at some moments, also two in a row and at two tiers at once."""

    def __init__(self, seed: int, chaos: Chaos, *, sessions: bool = False) -> None:
        super().__init__(seed, chaos, sessions=sessions)
        random = Random(f"journals {seed}")
        self.mergers = [host for host in self.world.hosts.values() if isinstance(host, MergerHost)]
        moments = sorted(START + random.randint(3 * SECOND, 20 * SECOND) for _ in range(random.choice([1, 1, 2, 3])))
        self.losses = [
            (at_us, random.sample(self.mergers, min(random.choice([1, 1, 9]), len(self.mergers)))) for at_us in moments
        ]
        self.length_us = 70 * SECOND
        self.truth = {name: self._longer(name, Random(f"{seed} {name}")) for name in self.gateways}
        for name in self.gateways:
            self.world.hosts[name].readings = self.truth[name]  # type: ignore[union-attr]

    def _longer(self, name: str, random: Random) -> list:  # type: ignore[type-arg]
        return self._readings(random) if self.truth[name] else []

    def _lose(self, now_us: int) -> None:
        while self.losses and self.losses[0][0] <= now_us:
            for merger in self.losses.pop(0)[1]:
                merger.machine = merger.executor = None
                merger.disk.stored = Stored()
                merger.down_until_us = now_us + merger.rng.choice([0, 1, 8]) * SECOND

    def run(self) -> list[str]:
        """As of any fleet, with the losses."""
        self.last_loss_us = self.losses[-1][0] if self.mergers else START
        with drawn(self.world.faults, self.frame_bytes):
            world = self.world
            world.now_us = START
            world.run(START + self.length_us, self._lose)
            world.calm()
            world.settle(START + self.length_us + 150 * SECOND)
            self.root_host.flush()
        return self.wrong()

    def differences(self, final: Mapping[tuple[str, str, int], Row]) -> list[str]:
        """No row has more than the oracle's, a complete one has all, and after the losses all are complete."""
        out, want = [], self.expected()
        learnt = [at for at, _, note in self.world.notes if isinstance(note, Note) and note.name == CHANGED]
        recovered_us = max([self.last_loss_us, *learnt]) + RECOVERED_US
        for key, values in want.items():
            got = final.get(key)
            late = key[2] > recovered_us
            if got is None or got.withdrawn:
                out += [f"missing {key}"] if late else []
            elif got.complete and not all(close(got.values[name], value) for name, value in values.items()):
                out.append(f"{key}: complete, want {values}, got {dict(got.values)}")
            elif not got.complete and late and not self.sessions:
                out.append(f"{key}: incomplete long after the last loss: {got.coverage}")
            elif any(reason == "behind" for _, reason in got.coverage.missing):
                out.append(f"{key}: behind at the end: {got.coverage}")
        return out + self._twice(final)

    def _twice(self, final: Mapping[tuple[str, str, int], Row]) -> list[str]:
        out = []
        for row in final.values():
            window = next(q for q in self.queries if q.id == row.query)
            label = {"": None, **{f"machine={n}": i for i, n in enumerate("xyz")}}[row.key]
            inside = sum(
                row.start <= r.time_us < row.end + (window.window.type == "session")
                and (label is None or r.series == label)
                for stream in self.truth.values()
                for r in stream
            )
            if not row.withdrawn and row.readings > inside:
                out.append(f"twice: {row.readings} of {inside} readings in {row}")
        return out

    @property
    def declared(self) -> int:
        """Gap records of lost journals at the root."""
        return sum(gap.reason == JOURNAL_LOST for _, gap in self.root_host.root.decider.gaps)

    def noted(self, name: str) -> int:
        """How often a note was given."""
        return sum(isinstance(note, Note) and note.name == name for _, _, note in self.world.notes)
