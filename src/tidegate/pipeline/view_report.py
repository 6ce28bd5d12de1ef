"""How the views of a database stand, as rows for SHOW MATERIALIZED VIEWS and the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.manifest import Manifest


def view_rows(
    views: Iterable[View],
    manifest: Manifest | None,
    now: Timestamp,
    *,
    fills: Iterable[Mapping[str, Any]] = (),
    seconds: Mapping[str, float] | None = None,
    error: str | None = None,
) -> list[dict[str, Any]]:
    """A row for each view; without a manifest, because of `error`, only what the catalog knows of them.

    `fills` is how far those are that the worker fills, `seconds` how long each took in the last batch.
    """
    by_id = {each["id"]: each for each in fills}
    return [_row(each, manifest, now, by_id.get(each.id), (seconds or {}).get(each.name), error) for each in views]


def _row(
    view: View,
    manifest: Manifest | None,
    now: Timestamp,
    fill: Mapping[str, Any] | None,
    seconds: float | None,
    error: str | None,
) -> dict[str, Any]:
    standing = None if manifest is None else manifest.views.get(view.id)
    state = None if manifest is None else "filling" if standing is None else standing.state
    files = [] if manifest is None else [each for node in view.nodes for each in manifest.files(node.id)]
    age_ms = None
    if manifest is not None and state == "live":
        age_ms = max(now.ms_since(manifest.timestamp), 0)
    elif standing is not None and state == "failed":
        age_ms = max(now.ms_since(standing.timestamp), 0)
    is_filled = fill is not None and state == "filling"
    return {
        "name": view.name,
        "columns": len(view.columns),
        "state": state,
        # At most: a row that was changed counts until its layers are compacted.
        "rows": None if manifest is None else sum(each.rows - each.deletes for each in files if each.table == view.id),
        "reads": ", ".join(sorted(view.inputs)) or None,
        "created": int(view.created),
        "since": None if standing is None else int(standing.timestamp),
        "age_ms": age_ms,
        "files": None if manifest is None else len(files),
        "bytes": None if manifest is None else sum(each.bytes for each in files),
        "last_batch_s": seconds,
        "percent": fill["percent"] if fill is not None and is_filled else None,
        "left_s": fill["left_s"] if fill is not None and is_filled else None,
        "error": (None if standing is None else standing.error or None) or error,
    }
