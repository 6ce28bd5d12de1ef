"""A client of seed 004's example, told what to do one call at a time: in this process, or in one of its own.

The clocks of one in its own process may be set wrong, before anything of Tidegate is imported there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent


class Answer(NamedTuple):
    """What a search found, and the Timestamp of its cut."""

    rows: frozenset[str]
    at: int


class SeedClient:
    """A client. All it gives and takes can be written as JSON.

    Checkpoints are made by `flush` alone; the pipeline's worker is a thread.
    """

    def __init__(self, path: str) -> None:
        import tidegate
        from folding import folding
        from tidegate import DatabaseSettings, LogSettings
        from tidegate.database import engine

        engine.spark_worker = folding()
        settings = DatabaseSettings(channels=2, log=LogSettings(tick_interval_ms=50), barrier_interval_ms=3_600_000)
        self.db = tidegate.open(path, settings=settings)
        self.sessions: dict[str, Any] = {}

    def is_owner(self) -> bool:
        return self.db.is_owner

    def clock_ms(self) -> int:
        """What time it is here."""
        return int(time.time() * 1000)

    def create(self) -> int:
        self.db.sql("CREATE TABLE c0 (id STRING PRIMARY KEY) SHARDS 2")
        return int(self.db.table("c0").table.schema.since)

    def insert(self, session: str, id: str) -> int:
        return int(self._session(session).insert("c0", [(id,)]).timestamp)

    def delete(self, session: str, id: str) -> int:
        return int(self._session(session).delete("c0", [id]).timestamp)

    def token(self, session: str) -> str:
        return self._session(session).token

    def flush(self) -> int:
        return int(self.db.flush())

    def search(
        self,
        session: str,
        level: str | None = None,
        *,
        at: int | None = None,
        staleness: float | None = None,
        token: str | None = None,
    ) -> Any:
        """Search as a session of this client, or as a new one that goes on with a token."""
        from tidegate import Timestamp

        reader = self._session(session) if token is None else self.db.session(token=token)
        found = reader.query("SELECT id FROM c0", level if at is None else Timestamp(at), staleness=staleness)
        return Answer(frozenset(row["id"] for row in found.rows()), int(found.timestamp))

    def close(self) -> None:
        self.db.close()

    def _session(self, name: str) -> Any:
        if name not in self.sessions:
            self.sessions[name] = self.db.session()
        return self.sessions[name]


class FarClient:
    """The same in a process of its own, its clocks `skew_s` seconds ahead of ours."""

    def __init__(self, path: Path, skew_s: int = 0, *, errors: Path) -> None:
        self._errors = errors
        with errors.open("ab") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "seed_client.py"), str(path), str(skew_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._answer()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps([name, arguments, options]) + "\n")
            self.process.stdin.flush()
            found = self._answer()
            return Answer(frozenset(found[0]), found[1]) if name == "search" else found

        return call

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"process {self.process.pid} is gone: {self._errors.read_text()[-2000:]}"
        return json.loads(line)

    def close(self) -> None:
        """It closes the database and ends."""
        if self.process.poll() is None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()  # type: ignore[union-attr]
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self.kill()

    def kill(self) -> None:
        """End it at once. May be repeated."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for each in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                each.close()  # type: ignore[union-attr]


def set_clocks(ahead_s: int) -> None:
    """Let the clocks that tell the date be wrong. Those that only measure stay right, as on a real machine.

    `datetime` cannot be replaced: compiled modules crash. Tidegate does not ask it, which a test sees to.
    """
    real_s, real_ns = time.time, time.time_ns
    time.time = lambda: real_s() + ahead_s
    time.time_ns = lambda: real_ns() + ahead_s * 1_000_000_000


def main() -> None:
    path, skew_s = sys.argv[1], int(sys.argv[2])
    if skew_s:
        assert "tidegate" not in sys.modules
        set_clocks(skew_s)
    sys.path.insert(0, str(HERE.parent))
    client = SeedClient(path)
    print("null", flush=True)
    for line in sys.stdin:
        name, arguments, options = json.loads(line)
        found = getattr(client, name)(*arguments, **options)
        print(json.dumps([sorted(found[0]), found[1]] if isinstance(found, Answer) else found), flush=True)
    client.close()


if __name__ == "__main__":
    main()
