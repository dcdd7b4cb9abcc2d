"""The demo: starts the tree, configures it through MQTT, kills some processes, and compares the results."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_agent.algebra.query.query import Sensor
from edge_agent.demo import delta_reader, plan
from edge_agent.demo.broker_watch import BrokerWatch
from edge_agent.demo.compare import Comparison, DeltaRow, compare
from edge_agent.demo.dashboard import Dashboard
from edge_agent.demo.plan import QUERIES, REGIONS, SECOND_US, Seat
from edge_agent.demo.processes import Broker, ChildProcess, free_ports
from edge_agent.demo.reference_answers import RawReadings, raw_readings
from edge_agent.errors import PortError

CLOUD: Final = "cloud"
LEAD_S: Final = 15  # then sensors begin: by then every gateway knows the queries, also on a busy machine
WARM_S: Final = 300.0  # Spark starts, warms up and writes its first rows: 40 s, several times that on a busy machine
DRAIN_S: Final = 420.0  # after the end of the show: what is under way reaches the tables, a root that was killed too
MARGIN_US: Final = 4 * SECOND_US  # readings come up to 1.3 s late, and a commit later they are on their way
DOWN_S: Final = 3.0  # a killed process stays away that long
ACTS: Final = ((0.35, "gateway"), (0.5, "region"), (0.65, "broker"))  # when what is killed, as a share of the time
STALE: Final = ("boiler-1s", "power-5s")  # whose rows' age is told: tumbling, lateness 1 s


@dataclass(frozen=True, slots=True)
class Options:
    """As on the command line. picture: where demo.png goes."""

    gateways: int = 8
    seconds: float = 120.0
    kill: bool = True
    keep: bool = False
    picture: Path = Path("demo.png")


@dataclass(slots=True)
class Outcome:
    """What the demo found. folder: where everything is. stale_s: age of rows when they appeared, in order."""

    verdict: Comparison
    folder: Path
    stale_s: list[float] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)


class DemoRun:
    """One run. `run` ends everything it started, also after errors."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options, self._say = options, say
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
        self.tables = self.folder / "root" / "tables"
        self.begin_us = (int(time.time()) + LEAD_S) * SECOND_US
        self.seats = plan.seats(options.gateways, self.begin_us)
        names = [*REGIONS, CLOUD]
        self.brokers = {
            name: Broker(f"broker-{name}", self.folder / f"broker-{name}", port)
            for name, port in zip(names, free_ports(len(names)), strict=True)
        }
        self.gateways = {seat.name: self._gateway(seat) for seat in self.seats}
        self.regions = {name: self._region(name) for name in REGIONS}
        config = self._config(self.folder / "root", plan.root_config(self.brokers[CLOUD].url))
        self.lander = self._node("land", "lander", config)
        self.root = self._node("root", "root", config)
        self.traffic: list[tuple[float, int, int, int]] = []  # see Dashboard
        self._killed: list[str] = []
        self._down: set[ChildProcess] = set()  # killed by us, to come back

    # --- the parts -------------------------------------------------------------------------------------------------

    @staticmethod
    def _config(folder: Path, text: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "headwater.toml"
        file.write_text(text)
        return file

    @staticmethod
    def _node(verb: str, name: str, config: Path) -> ChildProcess:
        return ChildProcess(name, [sys.executable, "-m", "edge_agent", verb, str(config)], config.parent)

    def _gateway(self, seat: Seat) -> ChildProcess:
        text = plan.gateway_config(seat, self.brokers[seat.region].url)
        return self._node("run", seat.name, self._config(self.folder / seat.name, text))

    def _region(self, name: str) -> ChildProcess:
        text = plan.region_config(name, self.brokers[CLOUD].url, self.brokers[name].url)
        return self._node("merge", name, self._config(self.folder / name, text))

    @property
    def children(self) -> list[ChildProcess]:
        """Every process, in the order in which they start."""
        return [*self.brokers.values(), self.root, self.lander, *self.regions.values(), *self.gateways.values()]

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the demo. Raises: PortError when a part is missing or does not start."""
        with self._stage() as watch:
            board = Dashboard(self.tables, self.gateways, self.regions, watch)
            self.traffic = board.traffic
            self._tell_ports()
            for seat in self.seats:
                for topic, payload in plan.sensor_messages(seat):
                    watch.publish(seat.region, topic, payload)
            for topic, payload in plan.query_messages():
                watch.publish(CLOUD, topic, payload)
            self._until(lambda: delta_reader.count(self.tables) > 0, WARM_S, watch, board, "the first row in Delta")
            self._acts(watch, board)
            cut_us = self._drain(watch, board)
            board.close()
            self._end()
        verdict = self._verdict(cut_us)
        stale_s = delta_reader.staleness(self.tables, STALE)
        return Outcome(verdict, self.folder, stale_s, self._killed)

    @contextmanager
    def _stage(self) -> Iterator[BrokerWatch]:
        with ExitStack() as stack:
            for child in self.children:
                stack.callback(child.kill)
                child.start()
            watch = BrokerWatch({name: broker.url for name, broker in self.brokers.items()})
            stack.callback(watch.close)
            homes: dict[str, list[str]] = {name: [] for name in (*REGIONS, CLOUD)}
            for seat in self.seats:
                homes[seat.region].append(seat.name)
            watch.ask({**homes, CLOUD: list(REGIONS)})
            yield watch

    def _tell_ports(self) -> None:
        ports = ", ".join(f"{name} {broker.port}" for name, broker in self.brokers.items())
        self._say(f"brokers on 127.0.0.1: {ports}")
        self._say("add a query to the running tree:")
        self._say(f"  {plan.your_line(self.brokers[CLOUD].port)}")
        self._say(f"  headwater peek --broker {self.brokers[CLOUD].url}    shows what passes")

    def _acts(self, watch: BrokerWatch, board: Dashboard) -> None:
        """The main part: one process after the other is killed and restarted."""
        began = time.monotonic()
        acts = [(began + share * self.options.seconds, kind) for share, kind in ACTS] if self.options.kill else []
        back: list[tuple[float, ChildProcess]] = []
        while time.monotonic() < began + self.options.seconds:
            self._turn(watch, board, f"{began + self.options.seconds - time.monotonic():.0f} s to go")
            now = time.monotonic()
            while acts and now >= acts[0][0]:
                victim = self._victim(acts.pop(0)[1])
                victim.kill()
                self._killed.append(victim.name)
                self._down.add(victim)
                board.event(f"kill -9 {victim.name}")
                back.append((now + DOWN_S, victim))
            for due, victim in [entry for entry in back if now >= entry[0]]:
                self._revive(victim, board)
                back.remove((due, victim))
        for _, victim in back:
            self._revive(victim, board)

    def _revive(self, victim: ChildProcess, board: Dashboard) -> None:
        victim.start()
        self._down.discard(victim)
        board.event(f"{victim.name} started again")

    def _supervise(self, board: Dashboard) -> None:
        """Restart killed processes, as systemd would. A process that exits on its own is an error.

        Raises: PortError.
        """
        for child in self.children:
            if child.alive or child in self._down:
                continue
            if child.code is None or child.code >= 0:
                raise PortError(f"{child.name} ended with code {child.code}: {child.tail(1)}")
            board.event(f"{child.name} was killed by somebody (signal {-child.code})")
            self._revive(child, board)

    def _victim(self, kind: str) -> ChildProcess:
        if kind == "gateway":
            return next(iter(self.gateways.values()))
        return self.regions[REGIONS[0]] if kind == "region" else self.brokers[REGIONS[1]]

    def _drain(self, watch: BrokerWatch, board: Dashboard) -> int:
        """Wait until every window that ends by now is complete in the tables. Returns that time."""
        cut_us = int(time.time()) * SECOND_US
        groups = len({(q["source"], q.get("where", "")) for q in QUERIES.values()})

        def there() -> bool:
            frontiers = delta_reader.frontiers(self.tables)
            return len(frontiers) >= groups and min(frontiers) >= cut_us + MARGIN_US

        self._until(there, DRAIN_S, watch, board, "the last windows in Delta")
        return cut_us

    def _until(
        self, there: Callable[[], bool], seconds: float, watch: BrokerWatch, board: Dashboard, what: str
    ) -> None:
        until = time.monotonic() + seconds
        looked = 0.0
        while time.monotonic() < until:
            self._turn(watch, board, f"waiting for {what}")
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                if there():
                    return
        raise PortError(f"{what}: not within {seconds:.0f} s; logs are in {self.folder}")

    def _turn(self, watch: BrokerWatch, board: Dashboard, text: str) -> None:
        watch.turn()
        board.show(text)
        self._supervise(board)

    def _end(self) -> None:
        """Stop from the leaves upward, so that the root writes its deferred revisions."""
        for group in (
            self.gateways.values(),
            self.regions.values(),
            (self.lander,),
            (self.root,),
            self.brokers.values(),
        ):
            for child in group:
                child.ask_to_stop()
            for child in group:
                child.stop(60.0 if child is self.root else 10.0)

    # --- the reference
    # -------------------------------------------------------------------------------------------------

    def sensors(self) -> dict[str, dict[str, Sensor]]:
        """Source -> gateway -> sensor, for sensors whose readings can be recomputed."""
        found: dict[str, dict[str, Sensor]] = {}
        for seat in self.seats:
            for name, sensor in seat.simulated.items():
                found.setdefault(name, {})[seat.name] = sensor
        return found

    def _verdict(self, cut_us: int) -> Comparison:
        rows, queries = delta_reader.results(self.tables), delta_reader.queries(self.tables)
        return compare(rows, queries, self.sensors(), (self.begin_us, cut_us), frozenset(QUERIES))

    def tidy(self, outcome: Outcome) -> None:
        """Keep the tables; keep everything else too if requested or if something is wrong."""
        if self.options.keep or not outcome.verdict.good:
            return
        for part in self.folder.iterdir():
            if part != self.tables.parent:
                shutil.rmtree(part, ignore_errors=True)
        for part in self.tables.parent.iterdir():
            if part != self.tables:
                shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def raw_of(show: DemoRun) -> tuple[RawReadings, list[DeltaRow], str]:
    """Data of the picture: all readings of one site, its one-second windows, a title."""
    query = next(q for q in delta_reader.queries(show.tables) if q.id == "boiler-1s")
    key = f"site={REGIONS[0]}" if len(show.seats) > 2 else f"site={REGIONS[1]}"
    rows = [row for row in delta_reader.results(show.tables) if row.query == query.id and row.key == key]
    until_us = max(row.end_us for row in rows)
    raw = raw_readings(query, show.sensors()["boiler"], show.begin_us, until_us)[key]
    return raw, rows, f"boiler, {key}: one-second windows from Delta over the raw readings"
