"""Everything that can happen to a machine, and everything it can ask for. Machines never do it themselves.

The runtime, or the simulation of the tests, turns the world into events and performs actions in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_agent.algebra.frame import Frame, Heartbeat, Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import Query, Sensor

# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. One comes at least every commit interval, and as soon as `wake_us` of the machine asks."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The definitions now in force for this node, all of them (docs/protocol.md 6.3).

    sensor_texts, query_texts: their canonical texts in the same order, for mergers and the root.
    """

    sensors: tuple[Sensor, ...]
    queries: tuple[Query, ...]
    sensor_texts: tuple[str, ...] = ()
    query_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Readings of one sensor. position: where a re-readable source goes on after them (None for others).

    token: what to acknowledge after the commit that holds them (None: nothing). clock_us: the sensor's own clock, for
    `file` and `simulated` (docs/protocol.md 4.1), None = the node's. ended: a file's last batch. mark_us: the source's
    own promise of event time, which a recording's watermarks give. markers: of punctuation windows; no readings.
    since_boot: times are since boot, for the node's clock is not known (4.3).
    """

    sensor: str
    batch: Batch
    position: object = None
    token: object = None
    clock_us: int | None = None
    ended: bool = False
    mark_us: int | None = None
    markers: tuple[Marker, ...] = ()
    since_boot: bool = False


@dataclass(frozen=True, slots=True)
class Gathering:
    """Readings have come that a `Read` will bring in a moment: whoever waits for silence goes on waiting."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last `Commit` asked for is durable. spool_bytes: what the spool takes on the disk with it."""

    spool_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit under way cannot be made: the disk is full. What makes room may go ahead of it (`Relieve`)."""


@dataclass(frozen=True, slots=True)
class Relieved:
    """The last `Relieve` is durable."""

    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection to the parent's broker is ready. In flight from before are void.

    parent: which one; '': the present one, and all others on its broker.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection to the parent's broker is lost. parent: see LinkUp."""

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker took a frame (PUBACK): room in flight, nothing durable (docs/protocol.md 3)."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Receipted:
    """A receipt from the parent."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame whose envelope was read and whose body was not: quarantined and settled (docs/protocol.md 3.6).

    run: it never came, and stands for so many frames, itself and those after it, that nobody sends again; 0: it came.
    since_us: no row or gap record in them began before, but for rows on time; None: nobody looked.
    """

    epoch: int
    seq: int
    reason: str
    payload: bytes
    run: int = 0
    since_us: int | None = None


@dataclass(frozen=True, slots=True)
class BadEnvelope:
    """A message that is no frame at all. It cannot be receipted; the sender gives up after 5 re-sendings."""

    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Arrived:
    """Messages from children in arrival order: (child, message, token to acknowledge after the commit)."""

    messages: tuple[tuple[str, Frame | Heartbeat | BadFrame | BadEnvelope, object], ...]


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """A child's retained status or last will: online false only starts its timer (docs/protocol.md 4.4)."""

    node: str
    online: bool


@dataclass(frozen=True, slots=True)
class LowerLink:
    """The connection on which children are heard went up or down; silence counts only while it is up (4.4)."""

    up: bool


@dataclass(frozen=True, slots=True)
class Retire:
    """Configuration says that a node will not come back (docs/protocol.md 1.5)."""

    node: str


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's command to this node: rebirth, resend."""

    name: str


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """An operator's word: parents that were left will not come back, and what waits for them is lost (1.5).

    parent: one of them; '': all.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """An operator's marker for the punctuation windows of this node that take markers from commands."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Failed:
    """A function of another package failed here: its answers are lost, no reading is. why: one line for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """A spooled frame cannot be read again: its bytes are not what was written."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ClockChanged:
    """What the node's time is, and whether it is known; the time of this event is by it already (4.3).

    boot: id of this boot. offset_us: of the node's time from the time since boot. by_us: how far it stepped with this.
    wrong: [from, upto) of times that readings got, or should have got, from a clock that turns out to have been wrong.
    A node that never gets this event has a clock that is known.
    """

    known: bool
    boot: str
    offset_us: int
    by_us: int = 0
    wrong: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The process is about to end in an orderly way: commit now what there is."""


Event = (
    Tick
    | Configured
    | Read
    | Gathering
    | Committed
    | Refused
    | Relieved
    | LinkUp
    | LinkDown
    | Sent
    | Receipted
    | Arrived
    | ChildStatus
    | LowerLink
    | Retire
    | Command
    | AcceptLoss
    | Mark
    | Failed
    | Damaged
    | ClockChanged
    | Stop
)

# --- actions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction (docs/protocol.md 3.1); exactly one is under way at a time, answered by `Committed`.

    state: slot -> plain value (ints, floats, str, bytes, bool, None, lists, tuples, dicts with str keys, numpy
    arrays), None deletes the slot. frames: appended to the spool in this order, not sent. forget: (epoch, seq) deleted.
    mark_sent: (epoch, seq) that are about to be published for the first time (docs/protocol.md 3.3).
    replace: frames that stand in for others at the same (epoch, seq): gap records.
    """

    state: Mapping[str, object] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    forget: tuple[tuple[int, int], ...] = ()
    mark_sent: tuple[tuple[int, int], ...] = ()
    replace: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Relieve:
    """Ahead of a commit that the disk refuses: delete these frames, mark those as sent (docs/protocol.md 3.3).

    All of them are committed. It needs no room on the disk, and makes some. Answered by `Relieved`.
    """

    forget: tuple[tuple[int, int], ...]
    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Send a spooled frame to the parent; the runtime has its bytes in the spool. to: a former one; '': the present."""

    epoch: int
    seq: int
    to: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat to the parent. to: another one, which is asked whether it is there."""

    heartbeat: Heartbeat
    to: str = ""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Send a receipt to a child."""

    node: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Ack:
    """The messages with these tokens are durable: acknowledge them where they came from."""

    tokens: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Keep bad bytes with the reason where an operator finds them (upward as a Gap with reason 'poison' too)."""

    node: str
    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator may want to read; the runtime logs it as event name and fields."""

    name: str
    fields: Mapping[str, object]


Action = Commit | Relieve | Publish | Beat | SendReceipt | Ack | Quarantine | Note


@dataclass(frozen=True, slots=True)
class SpooledFrame:
    """What a restarting node finds of a frame in its spool. damaged: why its bytes cannot be used; '' if they can.

    run: how many frames this is, itself and those after it; all of them alike, and none a birth if there are several.
    """

    epoch: int
    seq: int
    sent: bool
    frame: Frame | None = None  # decoded only where the machine asks for it
    damaged: str = ""
    run: int = 1


@dataclass(frozen=True, slots=True)
class Restored:
    """What a node finds at start: the committed slots and the spooled frames in order of (commit, seq).

    lost: a former spool was unusable and set aside: the node's past is unknown (docs/protocol.md 1.2, `lost`).
    """

    state: Mapping[str, object]
    frames: tuple[SpooledFrame, ...] = ()
    lost: bool = False
