"""`SparkStatements`: statements of views on Spark, for what DuckDB cannot answer as Spark would, and for functions.

A view that is a function of DataFrames has the query `SELECT * FROM tidegate_function('...', 'table', ...)`: the
function, pickled, and what it is given. Spark knows no such function; its rows take its place in the statement.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.reads.translate import Translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`")
_FUNCTION: Final = re.compile(r"tidegate_function\('([A-Za-z0-9+/=]+)'((?:\s*,\s*'(?:[^']|'')*')*)\)")
_RESULT: Final = "tidegate function result"


def function_query(function: Callable[..., Any], reads: tuple[str, ...]) -> str:
    """The query of a view that is a function of DataFrames. Raises: `InvalidArgument` for one that cannot be kept."""
    from pyspark import cloudpickle

    try:
        text = base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:  # Whatever it refers to may refuse.
        raise InvalidArgument(f"the function {function!r} cannot be kept: {error}; let it refer to less") from error
    names = "".join(", '" + each.replace("'", "''") + "'" for each in reads)
    return f"SELECT * FROM tidegate_function('{text}'{names})"


class SparkStatements:
    """Statements beside one session: on a copy of it, so that nobody's views are replaced.

    Relations are handed over as Arrow.
    """

    def __init__(self, session: SparkSession) -> None:
        self._given = session
        self._copy: SparkSession | None = None

    @property
    def _session(self) -> SparkSession:
        """The copy, made when it is needed first: with the settings and functions that the session has then."""
        if self._copy is None:
            given: Any = self._given
            self._copy = type(self._given)(given._sc, given._jsparkSession.cloneSession())
        return self._copy

    def __call__(self, sql: str, schemas: Mapping[str, pa.Schema], rows_of: Callable[[str], pa.Table]) -> pa.Table:
        """What a statement gives."""
        return self._run(sql, schemas, rows_of, lambda frame: frame.toArrow())

    def types(self, sql: str, schemas: Mapping[str, pa.Schema]) -> Translated:
        """What columns a statement has. Raises: `InvalidArgument` for one that Spark refuses."""
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema

        def empty(name: str) -> pa.Table:
            return schemas[name].empty_table()

        try:
            found = self._run(sql, schemas, empty, lambda frame: to_arrow_schema(frame.schema, timezone="UTC"))
        except PySparkException as error:
            raise InvalidArgument(str(error).strip().splitlines()[0]) from error
        return Translated("", list(found.names), list(found.types))

    def _run(
        self,
        sql: str,
        schemas: Mapping[str, pa.Schema],
        rows_of: Callable[[str], pa.Table],
        take: Callable[[DataFrame], Any],
    ) -> Any:
        session = self._session
        named = {each.replace("``", "`") for each in _QUOTED.findall(sql)}
        plain = {each for each in schemas if re.search(rf"\b{re.escape(each)}\b", sql)}
        used = sorted((named | plain) & set(schemas))
        made = []
        try:
            for name in used:
                session.createDataFrame(rows_of(name)).createOrReplaceTempView(_view(name))
                made.append(name)
            for number, call in enumerate(_FUNCTION.finditer(sql)):
                self._called(call).createOrReplaceTempView(_view(f"{_RESULT} {number}"))
                made.append(f"{_RESULT} {number}")
                sql = sql.replace(call.group(), _view(f"{_RESULT} {number}"), 1)
            return take(session.sql(sql))
        finally:
            for name in made:
                session.catalog.dropTempView(name)  # By the name itself: in backticks it is not found.

    def _called(self, call: re.Match[str]) -> DataFrame:
        from pyspark import cloudpickle

        function = cloudpickle.loads(base64.b64decode(call[1]))
        names = [each.replace("''", "'") for each in re.findall(r"'((?:[^']|'')*)'", call[2])]
        found: DataFrame = function(*(self._session.table(_view(each)) for each in names))
        return found


def _view(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
