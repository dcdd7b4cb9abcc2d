"""Replays a recorded file as a sensor: CSV with a header, or JSON lines, at a speed factor.

The sensor has its own clock: first time in the file + elapsed time x speed (docs/protocol.md 4.1). Readings are
delivered in the order of the file, once this clock passes their times. The file can be read again: the position is
[byte offset, elapsed time, first time, time of the clock], the first time null before the first reading. With another
speed the clock goes on from its time. In a label, `{/column}` inserts a column, or the value at a JSON pointer. Each
reading is one line; line ends within quotes are not supported.
"""

from __future__ import annotations

import csv
import os
import stat
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import REQUIRED, Key
from edge_agent.config.checking.quantities import Speed
from edge_agent.config.checking.value_types import Choice, FilePath, Text
from edge_agent.config.definitions.drivers import Driver
from edge_agent.config.definitions.label_templates import pointer
from edge_agent.errors import PortError
from edge_agent.machines.events import Read
from edge_agent.ports import Clock
from edge_agent.ports.sensors import payloads as read
from edge_agent.ports.sensors.convert import Fields
from edge_agent.ports.sensors.quality import CheckedSensor, Values

BLOCK_BYTES: Final = 512 * 1024  # one read, some ten thousand lines; a longer line is skipped and counted
BATCHES: Final = 4  # most batches in one poll at full speed, so that other sensors get their turn
FAR_US: Final = 3_600_000_000  # due time of a file that has ended
INT_DIGITS: Final = 40  # cells with this many digits or more are read as floats
ENDINGS: Final = (".jsonl", ".ndjson", ".json")


class FileSensor(CheckedSensor):
    """Replays one file from a position. Raises: PortError if the file is missing or lacks a column."""

    def __init__(self, sensor: Sensor, position: object, clock: Clock) -> None:
        super().__init__(sensor, oldest_us=None, shows=False)  # a recording may be of any time
        self._path = Path(str(sensor.option("path")))
        self._speed = sensor.number("speed", 1.0)
        kind = str(sensor.option("format", "auto"))
        self._json = kind == "jsonl" or (kind == "auto" and self._path.suffix.lower() in ENDINGS)
        self._cells = [pointer(self._pointer(option))[0] for option in ("time", "value")]
        self._fields = Fields(self.quality, self._pointer("value"), self._pointer("time"))
        self._boot_us = clock.boot_us
        self._file: BinaryIO = opened(self._path)
        try:
            self._names = [] if self._json else self._header()
            self._begin = self._offset = self._file.tell()  # offset: of the first line not yet delivered
            self._first_us: int | None = None
            self._last_us = 0  # greatest time delivered, by this driver
            self._from_us = 0  # time of the clock at the position from which this driver goes on
            self._started_us = self._boot_us()
            self._skipping = False  # within a line that is too long
            self._go_on(position)
        except BaseException:
            self._file.close()
            raise
        self._ended = self._reported_end = False
        self._wait(NO_INTS, np.zeros(0), NO_INTS, NO_INTS)

    def _go_on(self, position: object) -> None:
        """Continue at a position of an earlier process."""
        size = self._path.stat().st_size
        match position:
            case [int(offset), int(), int() | None as first_us, int(from_us)] if offset <= size:
                self._offset, self._first_us, self._from_us = offset, first_us, from_us
                if first_us is not None:
                    self._last_us = first_us
                    self._started_us -= ceil((from_us - first_us) / self._speed) if self._speed else 0
            case [int(offset), *_]:
                why = "the file is shorter than the part already read: it is read as a new file, from its beginning"
                self.quality.note("another_file", str(self._path), why=why, read_bytes=offset)
        if self._offset > self._begin:
            self._file.seek(self._offset - 1)
            self._skipping = self._file.read(1) != b"\n"
        self._file.seek(self._offset)

    def _pointer(self, option: str) -> str:
        text = str(self.sensor.option(option, option))
        return text if text.startswith("/") else "/" + text.replace("~", "~0").replace("/", "~1")

    def _header(self) -> list[str]:
        """Read the column names. Errors do not show content of the file, because it may be any file of the machine."""
        line = self._file.readline(BLOCK_BYTES)
        if b"\0" in line:
            raise PortError(f"{self._path} is not a CSV file: its first line contains zero bytes")
        if b"\r" in line.rstrip(b"\r\n"):
            raise PortError(f"{self._path}: its lines end with CR alone; save it with LF, or CR LF")
        if not line.endswith(b"\n") and len(line) >= BLOCK_BYTES:
            raise PortError(f"{self._path} is not a CSV file: its first line is longer than {BLOCK_BYTES} bytes")
        try:
            names = [name.strip() for name in next(csv.reader([line.decode("utf-8-sig", "replace")]), [])]
        except csv.Error as err:
            raise PortError(f"{self._path} is not a CSV file: {err}") from err
        for column in self._cells:
            if column not in names:
                raise PortError(f"{self._path} has no column {column!r} among its {len(names)} columns")
            if names.count(column) > 1:
                raise PortError(f"{self._path} has {names.count(column)} columns {column!r}; rename all but one")
        return names

    @property
    def position(self) -> object:
        """[byte offset, us elapsed, first event time (us), time of the clock, or the greatest delivered (us)].

        None before the first block was read, and [byte offset, 0, None, 0] before the first reading. Only earlier
        versions use the elapsed time.
        """
        if self._first_us is None:
            return None if self._offset == self._begin else [self._offset, 0, None, 0]
        reached_us = max(self._from_us, self._last_us, self._clock_us() if self._speed else self._last_us)
        return [self._offset, self._boot_us() - self._started_us, self._first_us, reached_us]

    # --- reading ahead ---------------------------------------------------------------------------------------------

    def _wait(self, time_us: Ints, value: Values, series: Ints, end: Ints) -> None:
        """Keep parsed readings until their time. end: file offset after each reading."""
        self._time, self._value, self._series, self._end = time_us, value, series, end
        # a reading waits for those before it in the file
        self._reach = np.maximum.accumulate(time_us) if len(time_us) else NO_INTS

    def _refill(self) -> None:
        """Parse the next block, unless readings wait. A block without a reading counts as delivered."""
        if len(self._time) or self._ended:
            return
        at = self._file.tell()
        try:
            block = self._file.read(BLOCK_BYTES)
        except OSError as err:
            raise PortError(f"cannot read {self._path}: {err.strerror}") from err
        if len(block) < BLOCK_BYTES:
            self._ended = True
        else:
            cut = block.rfind(b"\n") + 1
            if not cut and not self._skipping:
                self.quality.refuse("bad_value", b"", f"a line longer than {BLOCK_BYTES} bytes")
                self._skipping = True
            block = block[: cut or BLOCK_BYTES]
            self._file.seek(at + len(block))
        if self._skipping:
            head = block.find(b"\n") + 1
            self._skipping = not head and not self._ended
            at, block = at + (head or len(block)), block[head or len(block) :]
        lines = block.split(b"\n")
        ends = at + np.cumsum([len(line) + 1 for line in lines])
        ends[-1] -= 1  # the last line has no line end, or is empty
        self._parse(lines, ends)
        if not len(self._time):
            self._offset = self._file.tell()

    def _parse(self, lines: list[bytes], ends: Ints) -> None:
        there = [row for row, line in enumerate(lines) if line and not line.isspace()]
        lines = [lines[row] for row in there]
        good, documents = self.quality.each(lines, lines, read.document if self._json else self._row)
        shown = lines if len(good) == len(lines) else [lines[row] for row in good]
        rows, time_us, value, series = self._fields.columns(documents, shown, [""] * len(documents), NO_INTS)
        if len(rows):
            numbers = np.full(len(rows), series) if isinstance(series, int) else series
            self._wait(time_us, value, numbers, ends[np.array(there)[good[rows]]])

    def _row(self, line: bytes) -> dict[str, Any]:
        cells = _split(line)
        if len(cells) != len(self._names):
            raise read.BadPayloadError(f"{len(cells)} cells in the line, but {len(self._names)} columns in the header")
        row: dict[str, Any] = dict(zip(self._names, cells, strict=True))
        for column in self._cells:
            cell = row[column].strip()
            if not cell:
                del row[column]  # an empty cell means that there is no reading
                continue
            try:
                digits = cell.removeprefix("-")
                short = digits.isascii() and digits.isdecimal() and len(digits) < INT_DIGITS
                row[column] = int(cell) if short else read.number(cell.encode())
            except read.BadPayloadError:
                row[column] = cell  # may be a time as text; a value as text is refused later
        return row

    # --- readings out ------------------------------------------------------------------------------------------------

    def _clock_us(self) -> int:
        """The time of the sensor's own clock, in microseconds."""
        assert self._first_us is not None
        return self._first_us + int((self._boot_us() - self._started_us) * self._speed)

    def poll(self, now_us: int) -> list[Read]:
        """Returns the readings that are due; at full speed the next few thousand. The last batch is marked as ended.

        Raises: PortError if the file cannot be read; only if there are no readings from before the error.
        """
        del now_us  # the sensor has its own clock
        reads: list[Read] = []
        while not self._reported_end and len(reads) < BATCHES:
            try:
                self._refill()
            except PortError:
                if not reads:
                    raise
                break  # the position is behind these readings; the next poll meets the error again
            if self._first_us is None and len(self._time):
                self._first_us, self._last_us = int(self._time[0]), int(self._time[0])
                self._started_us = self._boot_us()
            due = len(self._time)
            if self._speed and due:
                due = int(np.searchsorted(self._reach, self._clock_us(), "right"))
            reads.append(self._release(due))
            if len(self._time) or not due:
                break  # the next readings are not due yet, or other sensors get their turn before the next block
        return reads

    def _release(self, n: int) -> Read:
        """Deliver the first n waiting readings as one batch."""
        time_us, value = self._time[:n], self._value[:n]
        series: Ints | int = self._series[:n] if len(self.quality.labels) != 1 or (self._series < 0).any() else 0
        if n:
            self._offset, self._last_us = int(self._end[n - 1]), max(self._last_us, int(self._reach[n - 1]))
        self._wait(self._time[n:], self._value[n:], self._series[n:], self._end[n:])
        if self._ended and not len(self._time):
            self._reported_end = True
        batch = self.quality.batch(time_us, value, series, None)
        clock_us = self._last_us
        if self._speed and self._first_us is not None and (len(self._time) or self._reported_end):
            clock_us = max(clock_us, self._clock_us())  # all due readings have been delivered
        return Read(self.sensor.id, batch, self.position, None, clock_us, self._reported_end)

    def due_us(self, now_us: int) -> int:
        """When the next line is due, on the clock of now_us."""
        if self._reported_end:
            return now_us + FAR_US
        if not self._speed or not len(self._time):
            return now_us
        return now_us + max(0, int((int(self._reach[0]) - self._clock_us()) / self._speed) + 1)

    def give_back(self) -> bool:
        """End a turn (Quality.give_back). Waiting readings keep their series, under new numbers."""
        labels = self.quality.labels
        numbers, place = np.unique(self._series, return_inverse=True)
        if not self.quality.give_back(numbers[numbers >= 0]):
            return False
        anew = [self.quality.series(labels[number]) if number >= 0 else number for number in numbers.tolist()]
        self._series = np.array(anew, np.int64)[place]
        return True

    def close(self) -> None:
        self._file.close()


def opened(path: Path) -> BinaryIO:
    """Open a regular file. Other files are refused: reading a device or a pipe might block or never end.

    Raises: PortError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as err:
        raise PortError(f"cannot read {path}: {getattr(err, 'strerror', None) or err}") from err
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise PortError(f"{path} is not a regular file: folders, devices and pipes cannot be read as a sensor")
    return os.fdopen(handle, "rb")


def _split(line: bytes) -> list[str]:
    """The cells of one CSV line. Raises: BadPayloadError. Source: RFC 4180."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as err:
        raise read.BadPayloadError(f"not CSV: {err}") from err


_COLUMN: Final = Text("a column or JSON pointer", longest=200)
DRIVER: Final = Driver(
    name="file",
    about="readings of a recorded file, at the speed of the recording or another",
    keys=(
        Key("path", FilePath(), REQUIRED, "CSV with a header, or JSON lines"),
        Key("format", Choice(("auto", "csv", "jsonl"), what="format"), "auto", "auto: by the ending of the file name"),
        Key("time", _COLUMN, "time", "column or JSON pointer of the event time"),
        Key("value", _COLUMN, "value", "column or JSON pointer of the value"),
        Key("speed", Speed(), 1.0, "1: as recorded; 60: a minute per second; 'max': as fast as possible", pace=True),
    ),
    start=FileSensor,
    check=None,
    labels=(),
    templates=frozenset({"payload"}),
    rate=None,
    rereadable=lambda sensor: True,
    own_clock=True,
    ends=True,
    local=False,
    extra="",
)
