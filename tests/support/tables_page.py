"""schemas/tables.md from the tables themselves: `python -m tests.support.tables_page` writes it, test_docs compares."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cloud_job.delta.tables import TABLES, Table

PAGE: Final = Path(__file__).resolve().parents[2] / "schemas" / "tables.md"
HEAD: Final = """# Tables

This page is for people who read the tables with SQL, Spark or another reader of Delta. The root writes them, in the
folder that `headwater root` is given (`gold/results`, `ops/nodes`, …) or under three-part names of a catalogue.
The page is made from `cloud_job/delta/tables.py` by `python -m tests.support.tables_page`; do not edit it here.

- Times as numbers are microseconds since 1970, UTC. Intervals are `[start, end)`. An empty window has no row.
- A row of `gold.results` is identified by (`query`, `node`, `key`, `start`), none of them null. It is replaced when it
  is revised: `revision` counts that, `late` the readings that came late, and `complete` says whether every expected
  gateway is in it.
- `key` is `site=a,unit=3` in the order of the query's `by`; `%`, `,` and `=` in values are percent-encoded.
- Compare `values` as `sort_array(map_entries(values))`: Spark has no equality for maps.
- `headwater query` offers one view a query, named like it, with a column an aggregate and withdrawn rows hidden.
"""


def page() -> str:
    """The whole page."""
    order = sorted(TABLES, key=lambda table: (not table.name.startswith("gold"), not table.name.startswith("ops")))
    return HEAD + "".join(section(table) for table in order)


def section(table: Table) -> str:
    """One table with its columns."""
    clustered = f" Clustered by {', '.join(f'`{column}`' for column in table.cluster)}." if table.cluster else ""
    rows = "".join(f"| `{name}` | {kind} | {meaning} |\n" for name, (kind, meaning) in table.columns.items())
    return f"\n## {table.name}\n{table.meaning}{clustered}\n\n| column | type | what |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page())
