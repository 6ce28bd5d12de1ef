"""The catalog as a file, for processes that do not own the database: one file for each version, never changed."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from tidegate.catalog.catalog import Catalog
from tidegate.errors import Corruption, InvariantBroken, NotFound


def catalog_path(database: Path, version: int) -> Path:
    return database / "snapshots" / "catalog" / f"{version:012d}.json"


def write_catalog(database: Path, catalog: Catalog) -> None:
    """Make the catalog's present version durable as a file. Ordering: before anything that names the version."""
    path = catalog_path(database, catalog.version)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(f".{os.getpid()}")
    with staged.open("wb") as file:
        file.write(catalog.snapshot())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@lru_cache(maxsize=4)
def read_catalog(database: Path, version: int) -> Catalog:
    """The catalog as it was in a version. Nobody changes what this returns.

    Raises: `NotFound` when it was removed, `Corruption`.
    """
    path = catalog_path(database, version)
    try:
        return Catalog.restore(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"version {version} of the catalog, {path}, is gone; read at a later time") from None
    except (InvariantBroken, ValueError, KeyError) as error:
        raise Corruption(str(path), 0, f"not a catalog: {error}") from error


def newest_catalog(database: Path) -> Catalog | None:
    """The newest version that was made a file; None while there is none."""
    versions = [int(path.stem) for path in (database / "snapshots" / "catalog").glob("*.json") if path.stem.isdigit()]
    return read_catalog(database, max(versions)) if versions else None


def remove_catalogs(database: Path, before: int) -> None:
    """Remove versions that nothing names any more."""
    for path in (database / "snapshots" / "catalog").glob("*.json"):
        if path.stem.isdigit() and int(path.stem) < before:
            path.unlink(missing_ok=True)
