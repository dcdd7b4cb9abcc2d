"""The demo: starts the tree, configures it through MQTT, kills some processes, and compares the results."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.node_file.node_tables import ROOT_ID
from edge_agent.demo import delta_reader, fleet_plan
from edge_agent.demo.broker_watch import BrokerWatch
from edge_agent.demo.compare import Comparison, DeltaRow, compare
from edge_agent.demo.dashboard import Dashboard
from edge_agent.demo.fleet_plan import QUERIES, REGIONS, SECOND_US
from edge_agent.demo.keys import LOOPBACK, Keys, link_with
from edge_agent.demo.processes import Broker, ChildProcess, free_ports
from edge_agent.demo.reference_answers import RawReadings, raw_readings
from edge_agent.errors import PortError
from edge_agent.identity.broker_files import Access
from edge_agent.ports.mqtt.link import Link

CLOUD: Final = "cloud"
OPERATORS: Final = ("watch", "auditor", "you")  # each has a certificate, because a broker allows one client per name
WATCH, AUDITOR, YOU = OPERATORS
LEAD_S: Final = 15  # from now to the first reading, so that every gateway has the queries, also on a busy machine
WARM_S: Final = 300.0  # limit for Spark's first rows: they take 40 s, or several times that on a busy machine
DRAIN_S: Final = 420.0  # limit for the last frames to reach the tables, also if the root was killed
MARGIN_US: Final = 4 * SECOND_US  # readings are up to 1.3 s late, and are sent with the next commit
DOWN_S: Final = 3.0  # from the kill of a process to its restart
STALE: Final = ("boiler-1s", "power-5s")  # the queries of `staleness`: tumbling, lateness 1 s
KILLS: Final = (0.35, 0.5, 0.65)  # when a gateway, a region and a broker are killed, as shares of the running time


class DemoRun:
    """One run of the demo. `run` stops every process that it started, also after an error."""

    def __init__(
        self,
        gateways: int,
        seconds: float,
        report: Callable[[str], None],
        *,
        kill: bool,
        audit: Callable[[Path, list[Link]], None] = lambda _tables, _brokers: None,
    ) -> None:
        """gateways: how many. seconds: how long the tree runs after the first row. report: prints a line. kill: whether
        processes are killed. audit: is called at the end with the folder of the tables and links to the brokers, when
        all nodes have stopped and the brokers still run.
        """
        self._seconds, self._report, self._kill, self._audit = seconds, report, kill, audit
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
        self.tables = self.folder / "root" / "tables"
        self.begin_us = (int(time.time()) + LEAD_S) * SECOND_US
        self.seats = fleet_plan.seats(gateways, self.begin_us)
        # Brokers and identities are as in a fleet: the files of `headwater broker-config`, certificates for all nodes.
        issuer = Keys(self.folder / "keys")
        names = [seat.name for seat in self.seats]
        keys = self.keys = {name: issuer.issue(name) for name in (*names, *REGIONS, ROOT_ID, *OPERATORS)}
        parents = {**{name: name for name in REGIONS}, CLOUD: ROOT_ID}  # broker -> node whose children publish there
        self.brokers = {}
        for (name, parent), port in zip(parents.items(), free_ports(len(parents)), strict=True):
            place, access = self.folder / f"broker-{name}", Access((parent,), OPERATORS)
            issuer.issue(f"broker-{name}", LOOPBACK, at=place)
            self.brokers[name] = Broker(place.name, place, port, keys=place, access=access)
        urls = {name: broker.url for name, broker in self.brokers.items()}
        self.gateways = {
            seat.name: self._node("run", seat.name, fleet_plan.gateway_config(seat, urls[seat.region], keys[seat.name]))
            for seat in self.seats
        }
        self.regions = {
            name: self._node("merge", name, fleet_plan.region_config(name, urls[CLOUD], urls[name], keys[name]))
            for name in REGIONS
        }
        settings = fleet_plan.root_config(urls[CLOUD], keys[ROOT_ID])
        self.lander = self._node("land", ROOT_ID, settings, log_name="lander")
        self.root = self._node("root", ROOT_ID, settings)
        self.traffic: list[tuple[float, int, int, int]] = []  # see Dashboard
        self.killed: list[str] = []
        self._restart_at: dict[ChildProcess, float] = {}  # killed process -> when it is started again

    # --- the parts -------------------------------------------------------------------------------------------------

    def _node(self, verb: str, node: str, settings: str, log_name: str = "") -> ChildProcess:
        """Write a node's settings file, and return the process `headwater VERB` in its folder."""
        file = self.folder / node / "headwater.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(settings)
        return ChildProcess(log_name or node, [sys.executable, "-m", "edge_agent", verb, str(file)], file.parent)

    @property
    def children(self) -> list[ChildProcess]:
        """All processes, in the order of their start."""
        return [*self.brokers.values(), self.root, self.lander, *self.regions.values(), *self.gateways.values()]

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Comparison:
        """Run the demo and compare its results. Raises: PortError if a part is missing, fails or is too slow."""
        with self._started() as watch:
            board = Dashboard(self.tables, self.gateways, self.regions, watch)
            self.traffic = board.traffic
            self._report_ports()
            for seat in self.seats:
                for topic, payload in fleet_plan.sensor_messages(seat):
                    watch.publish(seat.region, topic, payload)
            for topic, payload in fleet_plan.query_messages():
                watch.publish(CLOUD, topic, payload)
            self._until(lambda: delta_reader.count(self.tables) > 0, WARM_S, watch, board, "the first row in Delta")
            self._run_with_kills(watch, board)
            cut_us = self._drain(watch, board)
            board.close()
            self._end()
        rows, queries = delta_reader.results(self.tables), delta_reader.queries(self.tables)
        return compare(rows, queries, self.sensors(), (self.begin_us, cut_us), frozenset(QUERIES))

    @contextmanager
    def _started(self) -> Iterator[BrokerWatch]:
        """Start all processes; kill them at the end of the block."""
        with ExitStack() as stack:
            for child in self.children:
                stack.callback(child.kill)
                child.start()
            nodes = {name: [seat.name for seat in self.seats if seat.region == name] for name in REGIONS}
            watch = BrokerWatch(self._links(WATCH, (0.2, 1.0)), {**nodes, CLOUD: list(REGIONS)})
            stack.callback(watch.close)
            yield watch

    def _links(self, name: str, backoff_s: tuple[float, float] = (1.0, 60.0)) -> dict[str, Link]:
        """Broker -> a link to it with the certificate of this operator."""
        keys = self.keys[name]
        return {at: link_with(broker.url, keys, backoff_s=backoff_s) for at, broker in self.brokers.items()}

    def _report_ports(self) -> None:
        ports = ", ".join(f"{name} {broker.port}" for name, broker in self.brokers.items())
        cloud, you = self.brokers[CLOUD], self.keys[YOU]
        self._report(f"brokers on 127.0.0.1, TLS with client certificates: {ports}")
        self._report("add a query to the running tree:")
        self._report(f"  {fleet_plan.your_line(cloud.port, you)}")
        files = " ".join(f"--{name}-file {you}/{name}.pem" for name in ("ca", "cert", "key"))
        self._report(f"  headwater peek --broker {cloud.url} {files}    shows the messages")

    def _run_with_kills(self, watch: BrokerWatch, board: Dashboard) -> None:
        """Let the tree run, kill one process after the other, and restart each."""
        begin = time.monotonic()
        end = begin + self._seconds
        victims = (next(iter(self.gateways.values())), self.regions[REGIONS[0]], self.brokers[REGIONS[1]])
        kills = [(begin + share * self._seconds, victim) for share, victim in zip(KILLS, victims, strict=True)]
        while (now := time.monotonic()) < end:
            self._turn(watch, board, f"{end - now:.0f} s to go")
            while self._kill and kills and now >= kills[0][0]:
                _, victim = kills.pop(0)
                victim.kill()
                self.killed.append(victim.name)
                self._restart_at[victim] = now + DOWN_S
                board.event(f"kill -9 {victim.name}")
            for victim in [child for child, due in self._restart_at.items() if now >= due]:
                self._restart(victim, board)
        for victim in list(self._restart_at):
            self._restart(victim, board)

    def _restart(self, victim: ChildProcess, board: Dashboard) -> None:
        victim.start()
        self._restart_at.pop(victim, None)
        board.event(f"{victim.name} started again")

    def _supervise(self, board: Dashboard) -> None:
        """Restart processes that somebody else killed, as systemd would. Raises: PortError if a process exited."""
        for child in self.children:
            if child.alive or child in self._restart_at:
                continue
            if child.code is None or child.code >= 0:
                raise PortError(f"{child.name} ended with code {child.code}: {child.tail(1)}")
            board.event(f"{child.name} was killed by somebody (signal {-child.code})")
            self._restart(child, board)

    def _drain(self, watch: BrokerWatch, board: Dashboard) -> int:
        """Wait until every window that has ended by now is complete in the tables. Returns the present time in us."""
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
        raise PortError(f"{what}: did not arrive within {seconds:.0f} s; logs are in {self.folder}")

    def _turn(self, watch: BrokerWatch, board: Dashboard, text: str) -> None:
        watch.turn()
        board.show(text)
        self._supervise(board)

    def _end(self) -> None:
        """Stop the nodes from the gateways upward, so that the root receives everything; audit; stop the brokers."""
        for group in (self.gateways.values(), self.regions.values(), (self.lander,), (self.root,)):
            self._stop(group)
        self._audit(self.tables, list(self._links(AUDITOR).values()))
        self._stop(self.brokers.values())

    def _stop(self, group: Collection[ChildProcess]) -> None:
        for child in group:
            child.ask_to_stop()
        for child in group:
            child.stop(60.0 if child is self.root else 10.0)

    # --- the comparison --------------------------------------------------------------------------------------------

    def sensors(self) -> dict[str, dict[str, Sensor]]:
        """Source -> gateway -> sensor, for the simulated sensors, whose readings can be recomputed."""
        found: dict[str, dict[str, Sensor]] = {}
        for seat in self.seats:
            for name, sensor in seat.simulated.items():
                found.setdefault(name, {})[seat.name] = sensor
        return found

    def staleness(self) -> list[float]:
        """Seconds from the end of each window to its first row in Delta, sorted by end."""
        return delta_reader.staleness(self.tables, STALE)

    def tidy(self) -> None:
        """Delete all files except the tables."""
        for part in self.folder.iterdir():
            if part != self.tables.parent:
                shutil.rmtree(part, ignore_errors=True)
        for part in self.tables.parent.iterdir():
            if part != self.tables:
                shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def picture_data(run: DemoRun) -> tuple[RawReadings, list[DeltaRow], str]:
    """Returns (all readings of one site, its one-second windows, a title) for the picture."""
    query = next(q for q in delta_reader.queries(run.tables) if q.id == "boiler-1s")
    key = f"site={REGIONS[0]}" if len(run.seats) > 2 else f"site={REGIONS[1]}"
    rows = [row for row in delta_reader.results(run.tables) if row.query == query.id and row.key == key]
    until_us = max(row.end_us for row in rows)
    raw = raw_readings(query, run.sensors()["boiler"], run.begin_us, until_us)[key]
    return raw, rows, f"boiler, {key}: one-second windows from Delta over the raw readings"
