"""Statements of views on Spark: for what DuckDB cannot answer as Spark would."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidegate.pipeline.view_tables import Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`")


def statements_on(session: SparkSession) -> Spark:
    """Answers statements on a session. Relations are handed over as Arrow."""

    def answer(sql: str, schemas: Mapping[str, pa.Schema], rows_of: Callable[[str], pa.Table]) -> pa.Table:
        named = {each.replace("``", "`") for each in _QUOTED.findall(sql)}
        plain = {each for each in schemas if re.search(rf"\b{re.escape(each)}\b", sql)}
        used = sorted((named | plain) & set(schemas))
        for name in used:
            session.createDataFrame(rows_of(name)).createOrReplaceTempView(_view(name))
        try:
            return session.sql(sql).toArrow()
        finally:
            for name in used:
                session.catalog.dropTempView(_view(name))

    return answer


def _view(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
