"""All events that a machine handles, and all actions that it returns.

The runtime, or the simulation in the tests, makes the events and performs the actions in order. Machines never act
themselves.
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
    """Time has passed. A Tick comes at least every commit interval, and at the time `wake_us` of the machine."""


@dataclass(frozen=True, slots=True)
class Configured:
    """All definitions now in force for this node (docs/protocol.md 6.3).

    sensor_texts, query_texts: the canonical texts of `sensors` and `queries` in the same order, sent upward.
    """

    sensors: tuple[Sensor, ...]
    queries: tuple[Query, ...]
    sensor_texts: tuple[str, ...] = ()
    query_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Readings of one sensor.

    position: where to continue a source that can be read again (None for others). token: acknowledge it after the
    commit that contains these readings (None: nothing to acknowledge). clock_us: the sensor's own clock, for `file` and
    `simulated` (docs/protocol.md 4.1); None: the node's clock. ended: this is a file's last batch. mark_us: no reading
    below this event time follows, by a watermark of the source itself; None: no such promise. markers: for punctuation
    windows; they are not readings. since_boot: event times count from boot, because the node's clock is unknown (4.3).
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
    """Readings have arrived and a `Read` will deliver them in a moment: an early commit waits for it."""


@dataclass(frozen=True, slots=True)
class Polled:
    """All readings that had come by then have been passed on, so a commit that follows contains them."""

    upto_us: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """Readings of these sensors, until now, may be lost: the broker of their devices did not keep them for this node.

    since_us: the last commit before, by a clock that was known; None: the loss began for_us ago.
    """

    sensors: tuple[str, ...]
    since_us: int | None
    for_us: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """The last `Commit` is durable. spool_bytes: the size of the spool on disk after the commit."""

    spool_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit under way failed because the disk is full. The machine may free space by `Relieve` before a retry."""


@dataclass(frozen=True, slots=True)
class Relieved:
    """The last `Relieve` is durable. mark_sent: its (epoch, seq) pairs, now marked as sent."""

    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection to a parent's broker is ready. Frames in flight on an earlier connection must be sent again.

    parent: name of the parent; '': the present parent, and all others on its broker.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection to a parent's broker is lost. parent: see LinkUp."""

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker has acknowledged a frame (PUBACK), so another may be in flight.

    The frame is not durable at the parent before its receipt (docs/protocol.md 3).
    """

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Receipted:
    """A receipt from the parent."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame with a readable envelope but a bad body: to be quarantined and settled (docs/protocol.md 3.6).

    run: 0: the frame arrived. > 0: `run` frames from `seq` on never arrived, and nobody sends them again. since_us: no
    late row or gap record in these frames began earlier; None: not known.
    """

    epoch: int
    seq: int
    reason: str
    payload: bytes
    run: int = 0
    since_us: int | None = None


@dataclass(frozen=True, slots=True)
class BadEnvelope:
    """A message that is not a frame. It cannot be receipted; the sender gives it up after 5 re-sendings."""

    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Arrived:
    """Messages from children in arrival order: (child, message, token to acknowledge after the commit)."""

    messages: tuple[tuple[str, Frame | Heartbeat | BadFrame | BadEnvelope, object], ...]


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """A child's retained status or last will. online: False only starts the child's timer (docs/protocol.md 4.4)."""

    node: str
    online: bool


@dataclass(frozen=True, slots=True)
class LowerLink:
    """The connection to the children's broker went up or down; a child's silence counts only while it is up (4.4)."""

    up: bool


@dataclass(frozen=True, slots=True)
class Retire:
    """Configuration says that a node will not come back (docs/protocol.md 1.5)."""

    node: str


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's command to this node. name: `rebirth` or `resend`."""

    name: str


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """An operator declares that former parents will not come back, so frames that wait for them are lost (1.5).

    parent: name of a former parent; '': all.
    """

    parent: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker that an operator sent to this node, for its punctuation windows without a marker source."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Failed:
    """A function of another package failed: its results are lost, but no reading. why: one line for the operator."""

    why: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """A spooled frame cannot be read: its bytes fail their checksum."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ClockChanged:
    """The node's time was set, or became unknown (4.3). `now_us` of this event is already the new time.

    known: whether the time is known; a node that never gets this event has a known clock. boot: id of this boot.
    offset_us: node time minus time since boot. by_us: the step of the node time. wrong: [from, upto): times that
    readings got, or should have got, while the clock was wrong; None: no such times. error_us: how far the node's time
    may be off.
    """

    known: bool
    boot: str
    offset_us: int
    by_us: int = 0
    wrong: tuple[int, int] | None = None
    error_us: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """The process is about to end in order: commit all state now."""


Event = (
    Tick
    | Configured
    | Read
    | Gathering
    | Polled
    | Unheard
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
    """Store everything in one transaction (docs/protocol.md 3.1). One at most is under way; `Committed` answers it.

    state: slot -> plain value (ints, floats, str, bytes, bool, None, lists, tuples, dicts with str keys, numpy arrays),
    None deletes the slot. frames: append these to the spool in this order, without sending. forget: delete the frames
    (epoch, seq). mark_sent: frames (epoch, seq) about to be published for the first time (docs/protocol.md 3.3).
    replace: gap records that replace the frames at their own (epoch, seq).
    """

    state: Mapping[str, object] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    forget: tuple[tuple[int, int], ...] = ()
    mark_sent: tuple[tuple[int, int], ...] = ()
    replace: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Relieve:
    """Free space on a full disk before the failed commit is tried again; `Relieved` answers it.

    forget: delete these committed frames (epoch, seq). mark_sent: mark these committed frames as sent (docs/protocol.md
    3.3). Neither needs additional space.
    """

    forget: tuple[tuple[int, int], ...]
    mark_sent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Send a spooled frame to a parent; the runtime reads its bytes from the spool.

    to: name of a former parent; '': the present parent.
    """

    epoch: int
    seq: int
    to: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat. to: '': the present parent; else another parent, to find out whether it answers."""

    heartbeat: Heartbeat
    to: str = ""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Send a receipt to the child `node`."""

    node: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Ack:
    """The messages with these tokens are durable: acknowledge them at their source."""

    tokens: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Store the bad bytes of a node for the operator. A Gap with the reason 'poison' reports them upward."""

    node: str
    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A log message for the operator: name of the log event, and its fields."""

    name: str
    fields: Mapping[str, object]


Action = Commit | Relieve | Publish | Beat | SendReceipt | Ack | Quarantine | Note


@dataclass(frozen=True, slots=True)
class SpooledFrame:
    """A frame in the spool of a restarting node, or a run of similar frames with consecutive seqs.

    sent: it was marked as sent. damaged: why its bytes cannot be used; '' if they can. run: how many frames this entry
    describes, from `seq` on. They share all fields; in a run of several none is a birth.
    """

    epoch: int
    seq: int
    sent: bool
    frame: Frame | None = None  # None: not decoded, because the machine does not need it
    damaged: str = ""
    run: int = 1


@dataclass(frozen=True, slots=True)
class Restored:
    """The content of a node's spool at start: the committed slots, and the spooled frames in order of (commit, seq).

    lost: a former spool was unusable and was set aside, so the node's past is unknown (docs/protocol.md 1.2, `lost`).
    """

    state: Mapping[str, object]
    frames: tuple[SpooledFrame, ...] = ()
    lost: bool = False
