"""A lander's process on a folder, without a broker."""

from __future__ import annotations

from pathlib import Path

from edge_agent.algebra.frame import Birth, Frame
from edge_agent.config import topics
from edge_agent.config.node_file.settings import parse
from edge_agent.runtime.lander import LanderLoop
from edge_agent.wire import frames, landing, receipts
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection

EPOCH = 5


class Lander:
    """A lander's process without a broker. synced: inode -> size of a file, names in a folder, at its last fsync."""

    def __init__(self, folder: Path) -> None:
        text = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n'
        text += f'[lander]\nfolder = "{folder}"\n'
        self.folder = folder
        self.loop = LanderLoop(parse(text), "0")
        self.clock, self.up = ScriptedClock(), ScriptedConnection("root")
        self.loop.clock, self.loop.connection, self.loop.connections = self.clock, self.up, [self.up]
        self.synced: dict[int, int | set[str]] = {}
        self.closed = False

    def hears(self, *seqs: int) -> None:
        """Frames of the child "a"; the token of each is 100 + its seq."""
        for seq in seqs:
            birth = Birth(EPOCH << 32, self.loop.journal.id, None, "1") if seq == 0 else None
            payload = frames.encode(Frame(EPOCH, seq, birth))
            self.up.message(topics.frames("a", "root"), payload, 100 + seq)
        self.turns(3)

    def close(self) -> None:
        """As often as one likes."""
        if not self.closed:
            self.closed = True
            self.loop.close()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.clock.pass_s(1.0)
            self.loop.turn(0.0)

    @property
    def receipts(self) -> list[int]:
        return [receipts.decode(payload).upto for payload in self.up.sent(topics.ack("a"))]

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{landing.SUFFIX}"))

    def landed(self) -> list[int]:
        """The seqs of frames in files that have their name."""
        found = [record for path in self.files() for record in landing.iterate(path.read_bytes())]
        topic = topics.frames("a", "root")
        return [frames.envelope(payload).seq or 0 for name, _, payload in found if name == topic]

    def undurable(self) -> list[str]:
        """What a power cut could take of the files there are: content or the name."""
        names = self.synced.get(self.folder.stat().st_ino, set())
        out = [path.name for path in self.files() if self.synced.get(path.stat().st_ino) != path.stat().st_size]
        return out + [path.name for path in self.files() if not isinstance(names, set) or path.name not in names]
