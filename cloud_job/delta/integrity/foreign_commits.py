"""Notices commits by which somebody else changed rows of a table in a folder of this machine.

Every commit of a session of ours has a mark (`userMetadata`). DELETE, RESTORE or CREATE OR REPLACE by another session
may take rows on which the root relies: later rows would lack readings, or contain them twice, and be marked complete.
So no root goes on, as with an older copy (docs/protocol.md 8.5). Of the other tables the log names the commit. Commits
that change no rows, such as those that merge files or set properties, are anybody's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cloud_job.delta.integrity import durable_versions
from cloud_job.delta.tables import BATCHES, MESSAGES, POSITIONS, RESULTS, Place, Table
from cloud_job.spark_session import MARK
from edge_agent.errors import PortError

log = logging.getLogger("headwater.root")
RELIED_ON: Final = frozenset(table.name for table in (MESSAGES, BATCHES, POSITIONS, RESULTS))
CHANGES: Final = ('{"add"', '{"remove"', '{"cdc"')  # the begin of lines of a commit that change rows


def check(place: Place, table: Table, commit: Path, lines: Iterable[str]) -> None:
    """Look at a commit that may be of somebody else. lines: of the file. Raises: PortError."""
    told: Mapping[str, Any] = {}
    changes = False
    for line in lines:
        if line.startswith('{"commitInfo"'):
            told = json.loads(line)["commitInfo"]
            if told.get("userMetadata") == MARK:
                return
        elif not changes and line.startswith(CHANGES):
            (action,) = json.loads(line).values()
            changes = action.get("dataChange", True)
    if not changes:
        return
    operation, who = str(told.get("operation", "unknown"))[:40], str(told.get("engineInfo", "unknown"))[:80]
    if table.name not in RELIED_ON:
        log.warning(
            "root.changed_by_others", extra={"table": table.name, "version": int(commit.stem), "operation": operation}
        )
        return
    raise PortError(
        f"version {int(commit.stem)} of the table {place.path(table)} was not written by a root ({operation} by "
        f"{who}); later rows would seem complete without what it took; put all tables back from the same copy, or "
        f"delete {durable_versions.path_of(place)} to use them as they are"
    )
