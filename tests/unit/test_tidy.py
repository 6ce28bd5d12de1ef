"""The shape of the code: who may import whom, and what the pure core never does. See ARCHITECTURE.md."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tidegate"

MAY_IMPORT = {
    "errors": set(),
    "clock": {"errors", "clock"},
    "ports": {"errors", "ports"},
    "log": {"errors", "clock", "ports", "log"},
    "txn": {"errors", "clock", "log", "txn"},
    "topics": {"errors", "clock", "log", "txn", "topics"},
    "tables": {"errors", "clock", "log", "txn", "topics", "tables"},
    "catalog": {"errors", "clock", "log", "txn", "topics", "tables", "catalog"},
    "stores": {"errors", "ports", "stores"},
    "runtime": {"errors", "clock", "ports", "log", "txn", "stores", "runtime"},
}
MAY_IMPORT["cdc"] = {"errors", "cdc"}
MAY_IMPORT["barrier"] = {"errors", "clock", "log", "barrier"}
MAY_IMPORT["reads"] = {"errors", "clock", "tables", "catalog", "reads"}
MAY_IMPORT["views"] = {"errors", "clock", "tables", "reads", "views"}
MAY_IMPORT["snapshots"] = {"errors", "clock", "ports", "tables", "snapshots"}
MAY_IMPORT["pipeline"] = (
    MAY_IMPORT["runtime"] | MAY_IMPORT["catalog"] | MAY_IMPORT["barrier"] | MAY_IMPORT["snapshots"] | {"pipeline"}
)
MAY_IMPORT["pipeline"] |= MAY_IMPORT["views"]
# `Database.capture` and `apply` load what stands above them only when they are called.
MAY_IMPORT["database"] = MAY_IMPORT["pipeline"] | {"reads", "database", "spark", "capture"}
MAY_IMPORT["capture"] = MAY_IMPORT["database"] | {"cdc"}
MAY_IMPORT["sim"] = MAY_IMPORT["database"] | {"sim"}
PURE = ("clock", "log", "txn", "topics", "tables", "catalog", "barrier", "reads", "views", "cdc")
IMPURE_MODULES = {"time", "random", "os", "io", "socket", "subprocess", "sqlite3", "uuid", "secrets", "tempfile"}
LONGEST = 500


def modules():
    return sorted(path for path in SOURCE.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_lies_below_it(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part not in MAY_IMPORT:
        return
    for name in imports(path):
        if name.startswith("tidegate."):
            assert name.split(".")[1] in MAY_IMPORT[part], f"{part} imports {name}"


@pytest.mark.parametrize("part", PURE)
def test_the_core_reads_no_clock_and_does_no_io(part):
    for path in sorted((SOURCE / part).rglob("*.py")):
        found = {name.split(".")[0] for name in imports(path)} & IMPURE_MODULES
        assert not found, f"{path.name} imports {found}"


def test_every_module_says_what_it_promises():
    for path in modules():
        tree = ast.parse(path.read_text())
        if path.read_text().strip():
            assert ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"


def test_spark_is_imported_in_one_place():
    for path in modules():
        if "spark" not in path.relative_to(SOURCE).parts:
            assert not any(name.split(".")[0] == "pyspark" for name in imports(path)), path


def test_no_module_is_a_library_of_its_own():
    for path in modules():
        length = len(path.read_text().splitlines())
        assert length <= LONGEST, f"{path.relative_to(SOURCE)} has {length} lines"


def test_every_public_name_exists():
    import tidegate

    for name in tidegate.__all__:
        assert getattr(tidegate, name) is not None


def test_every_test_is_run():
    """Directories are listed, the slowest first; none may be forgotten."""
    tests = SOURCE.parents[1] / "tests"
    settings = tomllib.loads((tests.parent / "pyproject.toml").read_text())
    listed = {tests.parent / each for each in settings["tool"]["pytest"]["ini_options"]["testpaths"]}
    forgotten = [path for path in tests.rglob("test_*.py") if not listed & set(path.parents)]
    assert not forgotten


def test_no_two_test_files_have_one_name():
    """They are imported by their names alone: the second one would not be found."""
    names = Counter(path.name for path in (SOURCE.parents[1] / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
