"""Which tables a query names, by Spark's own parser: for syntax that sqlglot does not read."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from tidegate.database.cut_reader import shown
from tidegate.errors import InvalidArgument
from tidegate.spark.query_session import session_for

_COMMAND: Final = "org.apache.spark.sql.catalyst.plans.logical.Command"
_RELATION: Final = re.compile(r"'UnresolvedRelation \[([^\]]*)\]")


def tables_named(path: Path, sql: str, known: Collection[str]) -> list[str]:
    """Those of the `known` tables that a query names.

    Raises: `InvalidArgument` when Spark does not understand it either, or it is no query.
    """
    from py4j.java_gateway import is_instance_of
    from pyspark.errors import PySparkException

    with session_for(path, is_large=False) as session:
        java: Any = session._jsparkSession
        try:
            plan = java.sessionState().sqlParser().parsePlan(sql)
        except PySparkException as error:
            raise InvalidArgument(f"{shown(sql)} is not understood: {str(error).strip().splitlines()[0]}") from error
        gateway = session.sparkContext._gateway
        if is_instance_of(gateway, plan, _COMMAND):
            raise InvalidArgument(f"{shown(sql)} is not a query; run statements with `sql`")
        named = {each.replace(", ", ".") for each in _RELATION.findall(plan.treeString())}
    return sorted(named.intersection(known))
