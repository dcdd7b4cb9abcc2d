"""All events that can happen to a machine, and all actions that it can ask for. Machines never act themselves.

The runtime, or the simulation of the tests, turns what happens into events and performs actions in their order.
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
    """Readings of one sensor. position: where to continue a re-readable source after them (None for others).

    token: what to acknowledge after the commit that contains them (None: nothing). clock_us: the sensor's own clock,
    for `file` and `simulated` (docs/protocol.md 4.1), None = the node's. ended: a file's last batch. mark_us: the
    source's own promise of event time, as of a recording's watermarks. markers: of punctuation windows; no readings.
    since_boot: times are since boot, because the node's clock is not known (4.3).
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
    """Readings have arrived that a `Read` will deliver in a moment: a source is not silent meanwhile."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last `Commit` is durable. spool_bytes: the size of the spool on the disk after it."""

    spool_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit under way cannot be made because the disk is full. Actions that free space may precede it
    (`Relieve`).
    """


@dataclass(frozen=True, slots=True)
class Relieved:
    """The last `Relieve` is durable."""

    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection to the parent's broker is ready. Earlier publishes in flight are void.

    parent: which one; '': the present one, and all others on its broker.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection to the parent's broker is lost. parent: see LinkUp."""

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker has a frame (PUBACK): another may be in flight. That does not make the frame durable (docs/protocol.md
    3).
    """

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Receipted:
    """A receipt from the parent."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame whose envelope could be read and whose body could not: quarantined and settled (docs/protocol.md 3.6).

    run: > 0: the frame never came, and stands for so many frames, itself and those after it, that nobody sends again;
    0: it came. since_us: no late row or gap record in them began earlier; None: not known.
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
    """The connection to the children went up or down; silence counts only while it is up (4.4)."""

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
    """An operator declares that former parents will not come back: frames that wait for them are lost (1.5).

    parent: one of them; '': all.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """An operator's marker for the punctuation windows of this node that take markers from commands."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Failed:
    """A function of another package failed here: its results are lost, but no reading. why: one line for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """A spooled frame cannot be read: its bytes fail their checksum."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ClockChanged:
    """The node's time, and whether it is known. The time of this event already follows it (4.3).

    boot: id of this boot. offset_us: of the node's time from the time since boot. by_us: how far the time stepped with
    this. wrong: [from, upto) of times that readings got, or should have got, from a clock that turns out to have been
    wrong. A node that never gets this event has a known clock.
    """

    known: bool
    boot: str
    offset_us: int
    by_us: int = 0
    wrong: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The process is about to end in order: commit all state now."""


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

    state: slot -> plain value (ints, floats, str, bytes, bool, None, lists, tuples, dicts with str keys, numpy arrays),
    None deletes the slot. frames: appended to the spool in this order, not sent. forget: (epoch, seq) deleted.
    mark_sent: (epoch, seq) that are about to be published for the first time (docs/protocol.md 3.3). replace: gap
    records that replace other frames at the same (epoch, seq).
    """

    state: Mapping[str, object] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    forget: tuple[tuple[int, int], ...] = ()
    mark_sent: tuple[tuple[int, int], ...] = ()
    replace: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Relieve:
    """Before a commit that the disk refuses: delete these frames, mark those as sent (docs/protocol.md 3.3).

    All of them are committed. It needs no space on the disk, and frees some. Answered by `Relieved`.
    """

    forget: tuple[tuple[int, int], ...]
    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Send a spooled frame to the parent; the runtime reads its bytes from the spool. to: a former parent; '': the
    present.
    """

    epoch: int
    seq: int
    to: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat to the parent. to: another parent, to find out whether it answers."""

    heartbeat: Heartbeat
    to: str = ""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Send a receipt to a child."""

    node: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Ack:
    """The messages with these tokens are durable: acknowledge them at their source."""

    tokens: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Store bad bytes with the reason for the operator (a Gap with reason 'poison' reports them upward)."""

    node: str
    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A message for the operator; the runtime logs it as event name and fields."""

    name: str
    fields: Mapping[str, object]


Action = Commit | Relieve | Publish | Beat | SendReceipt | Ack | Quarantine | Note


@dataclass(frozen=True, slots=True)
class SpooledFrame:
    """A frame in the spool of a restarting node. damaged: why its bytes cannot be used; '' if they can.

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
    """The content of a node's spool at start: the committed slots, and the spooled frames in order of (commit, seq).

    lost: a former spool was unusable and set aside: the node's past is unknown (docs/protocol.md 1.2, `lost`).
    """

    state: Mapping[str, object]
    frames: tuple[SpooledFrame, ...] = ()
    lost: bool = False
