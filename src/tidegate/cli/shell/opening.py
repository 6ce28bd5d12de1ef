"""`Opening`: a database that is opened while the prompt is already there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from tidegate.cli.reach import check_exists
from tidegate.cli.shell.calling import Call
from tidegate.errors import WaitTimeout

if TYPE_CHECKING:
    from tidegate.database.database import Database

_CLOSE_S: Final = 10.0


class Opening:
    """Opens in the background; `database` waits for it."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Raises: `NotFound` when there is none and `create` is off: looking must not make one."""
        if not create:
            check_exists(path)
        self._path = path
        self._call = Call(self._open)

    def _open(self) -> Database:
        with _without_pandas():
            import tidegate

            return tidegate.open(self._path, name=f"tidegate sql, process {os.getpid()}")

    @property
    def is_done(self) -> bool:
        return self._call.is_done

    def database(self) -> Database:
        """Raises: what opening raises; KeyboardInterrupt, and may be waited for again."""
        return self._call.wait()

    def database_if_open(self) -> Database | None:
        """None while it is being opened, and if that failed."""
        if not self._call.is_done:
            return None
        try:
            return self._call.wait()
        except Exception:
            return None

    def database_within(self, seconds: float) -> Database | None:
        """Raises: what opening raises."""
        try:
            return self._call.wait(seconds)
        except WaitTimeout:
            return self._call.wait() if self._call.is_done else None

    def warm_up(self) -> None:
        """Once it is open, load what the first query needs; nobody waits for that."""

        def ask() -> None:
            with suppress(Exception):  # Whoever asks something himself is told.
                self.database().query("SELECT 1", consistency="eventual")

        Thread(target=ask, name="tidegate sql warms up", daemon=True).start()

    def close(self) -> None:
        """Close what was opened, also what is still being opened."""
        self._call.settle(_CLOSE_S)
        found = self.database_if_open()
        if found is not None:
            found.close()


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not loaded for this", name=name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Keep Arrow from loading pandas, which a shell has no use for and waits 0.3 s for.

    Only where Arrow is not loaded yet: otherwise this is somebody's program, which may want both.
    """
    if "pyarrow" in sys.modules or "pandas" in sys.modules:
        yield
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])  # Arrow looks for pandas once, and this is when.
        yield
    finally:
        sys.meta_path.remove(finder)
