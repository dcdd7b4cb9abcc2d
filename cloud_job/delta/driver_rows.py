"""The column types of the tables for Spark and Arrow, and rows that are made on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cloud_job.delta.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def schema(table: Table) -> StructType:
    """The table's columns as a Spark type."""
    return struct({name: kind for name, (kind, _) in table.columns.items()})


def struct(columns: Mapping[str, str]) -> StructType:
    """Turn columns (name -> type) into a Spark type. Spark's own parser of types would need a session."""
    from pyspark.sql import types as T

    simple: dict[str, DataType] = {
        "BIGINT": T.LongType(),
        "INT": T.IntegerType(),
        "STRING": T.StringType(),
        "BINARY": T.BinaryType(),
        "BOOLEAN": T.BooleanType(),
        "DOUBLE": T.DoubleType(),
        "TIMESTAMP": T.TimestampType(),
        "DECIMAL(38,0)": T.DecimalType(38, 0),
    }
    composed: dict[str, DataType] = {
        "ARRAY<STRING>": T.ArrayType(T.StringType()),
        "MAP<STRING, STRING>": T.MapType(T.StringType(), T.StringType()),
        "MAP<STRING, DOUBLE>": T.MapType(T.StringType(), T.DoubleType()),
    }
    kinds = {**simple, **composed}

    def read(kind: str) -> DataType:
        if kind.startswith("struct<"):  # a cell, a struct of scalars (cloud_job/spark/native/cell_arrays.py)
            return struct(dict(field.split(":") for field in kind[len("struct<") : -1].split(",")))
        return kinds[kind.upper()]

    return T.StructType([T.StructField(name, read(kind)) for name, kind in columns.items()])


def arrow_schema(table: Table) -> pa.Schema:
    """The table's columns as an Arrow schema, for rows made on the driver."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema(table), timezone="UTC")


def arrow(columns: str) -> pa.Schema:
    """An Arrow schema from a text with Spark's type names, such as `query string, revision bigint`."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "map<string,double>": pa.map_(pa.string(), pa.float64()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in columns.split(", "))])


def rows(spark: SparkSession, table: Table, content: list[dict[str, object]]) -> DataFrame:
    """Rows made on the driver, one dict per row, with the table's columns."""
    import pyarrow as pa

    return one_file(spark, table, pa.Table.from_pylist(content, schema=arrow_schema(table)))


def of_columns(spark: SparkSession, table: Table, content: Mapping[str, list[object]]) -> DataFrame:
    """Rows made on the driver, one list per column, with the table's columns."""
    import pyarrow as pa

    return one_file(spark, table, pa.Table.from_pydict(dict(content), schema=arrow_schema(table)))


def one_file(spark: SparkSession, table: Table, content: pa.Table) -> DataFrame:
    """Rows made on the driver, to be written as one file."""
    return frame(spark, content, schema(table)).coalesce(1)


def frame(spark: SparkSession, content: pa.Table, kinds: StructType) -> DataFrame:
    """Rows made on the driver, as one chunk, because Spark ignores what follows an empty chunk."""
    return spark.createDataFrame(content.combine_chunks(), kinds)


def small(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> DataFrame:
    """Rows made on the driver, for a join. Joining values that change in every batch keeps them out of Spark's plan,
    which can then be reused.
    """
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))
