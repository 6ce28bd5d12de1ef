"""`Opening`: a database that is opened once the prompt is there, while somebody types."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from tidegate.cli.output import has_colours
from tidegate.cli.reach import check_exists
from tidegate.cli.shell.calling import Call

if TYPE_CHECKING:
    from tidegate.database.database import Database

_CLOSE_S: Final = 10.0


class Opening:
    """Opens in the background, from `start` on; `database` starts it if nobody has, and waits for it."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Raises: `NotFound` when there is none and `create` is off: looking must not make one."""
        if not create:
            check_exists(path)
        self._path = path
        self._lock = Lock()
        self._call: Call[Database] | None = None

    def start(self) -> None:
        """Begin. May be repeated."""
        self._started()

    def _started(self) -> Call[Database]:
        with self._lock:
            if self._call is None:
                self._call = Call(self._open)
            return self._call

    def _open(self) -> Database:
        with _without_collecting(), _without_pandas():
            import tidegate

            return tidegate.open(self._path, name=f"tidegate sql, process {os.getpid()}")

    @property
    def is_done(self) -> bool:
        return self._call is not None and self._call.is_done

    def database(self) -> Database:
        """Raises: what opening raises; KeyboardInterrupt, and may be waited for again."""
        return self._started().wait()

    def database_if_open(self) -> Database | None:
        """None while it is being opened, and if that failed."""
        if self._call is None or not self._call.is_done:
            return None
        try:
            return self._call.wait()
        except Exception:
            return None

    def warm_up(self) -> None:
        """Once it is open, load what the first query needs; nobody waits for that."""

        def ask() -> None:
            has_colours()
            with suppress(Exception):  # Whoever asks something himself is told.
                self.database().query("SELECT 1", consistency="eventual")

        Thread(target=ask, name="tidegate sql warms up", daemon=True).start()

    def close(self) -> None:
        """Close what was opened, also what is still being opened."""
        if self._call is None:
            return
        self._call.settle(_CLOSE_S)
        found = self.database_if_open()
        if found is not None:
            found.close()


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Look for no garbage meanwhile: loading modules makes next to none, and many objects to look through."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
