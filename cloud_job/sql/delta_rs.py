"""SQL over the tables without a JVM: delta-rs reads them with its own engine, within a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloud_job.sql.answer import QueryAnswer, of_arrow
from cloud_job.sql.views import DAMAGED, DEFINITIONS, check, mistake, quoted, tables_in, unreadable, views

if TYPE_CHECKING:
    import pyarrow as pa


def ask(sql: str, folder: str) -> QueryAnswer:
    """Run one statement over the tables in a folder.

    Raises: ConfigError for wrong SQL; PortError if there are no tables, or their files are damaged.
    """
    check(sql)
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError

    found = tables_in(folder)
    engine, queries = QueryBuilder(), list[str]()
    try:
        for schema in sorted({name.split(".")[0] for name in found}):
            engine.execute(f"create schema {schema}").read_all()
        for name, path in found.items():
            engine.register(name, DeltaTable(path))
        for query, select in views(of_arrow(_arrow(engine.execute(DEFINITIONS)))):
            engine.execute(f"create view {quoted(query)} as {select}").read_all()
            queries.append(query)
        return of_arrow(_arrow(engine.execute(sql)))
    except (DeltaError, OSError, ValueError, OverflowError) as err:
        if any(word in str(err) for word in DAMAGED):
            raise unreadable(f"the tables in {folder}", err) from err
        raise mistake(str(err), sql, found, queries) from err


def _arrow(result: Any) -> pa.Table:
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(result).read_all()
