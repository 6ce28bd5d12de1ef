"""`tidegate status`: a database at one moment: who uses it, what goes on, what waits, and on what (promise 8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.output import duration, json_option, make_table, printable, size
from tidegate.cli.reach import path_argument, reach, show, watchable

_ROWS_MAX: Final = 30
"""Of one table; --json prints all."""
_SLOW_MS: Final = 1_000
"""A watermark that is further behind is worth a colour."""

_STAGES: Final = {
    "append_to_tick_ms": "append to tick",
    "tick_to_barrier_ms": "to barrier",
    "barrier_to_checkpoint_ms": "to checkpoint",
}

Row = dict[str, Any]


@click.command()
@path_argument
@watchable
@json_option
def status(path: Path, watch: bool, every_s: float, as_json: bool) -> None:
    """Show the state of the database at PATH: its owner and clients, transactions, tables and the pipeline,
    subscriptions and channels.

    A database that another process has open is reached through that process; one that nobody has open is opened.

    \b
    What the lines and columns say:
      pipeline    the last checkpoint; its Timestamp is the service time, up to which tables are in files
      lag         how long the oldest append waits for its tick, barrier for its cut, epoch for its checkpoint
      catching up how far it is with the epochs that waited when it fell behind, by what they hold
      age         of a view's rows; of one that failed, how long ago; took, the last batch
      files       of a table in the last checkpoint; layers are those that compaction has not merged yet
      behind      how far a channel's last tick is behind now; readers have all that is older
      waits for   the append or transaction that keeps the next tick below it, and since when
      keeps log   the open transaction that begins first: LastConfirmed and retention stay there
      backlog     messages of a subscription that are not acknowledged; lag is the age of the oldest
      unacked     of those, delivered to a consumer; pending, acknowledged in an open transaction

    Rates are over the last 5 s. --json prints one object with all of it, also what the tables leave out.

    \b
    Examples:
      tidegate status shop.tide
      tidegate status shop.tide --watch --every 0.5
      tidegate status shop.tide --json | jq .transactions.oldest_open
      tidegate status shop.tide --json | jq .pipeline.waits_for
      tidegate status shop.tide --json | jq '.channels[] | select(.held_by) | .held_by'

    Exit codes: 0 fine, 1 no such database or it cannot be opened, 2 usage.
    """
    with reach(path, "status") as db:

        def ask() -> Row:
            found = db.status()
            found["clients"] = [each for each in found["clients"] if each["name"] != db.name]  # Not this command.
            return {**found, "opened_by_this_command": db.is_owner}

        show(ask, draw, lambda found: iter([found]), as_json=as_json, watch=watch, every_s=every_s)


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(found: Row) -> Group:
    """The state as tables that fit 80 columns."""
    parts: list[RenderableType] = [*_head(found)]
    for rows, table in (
        (found["clients"], _clients),
        (found["tables"], _tables),
        (found["views"], _views),
        (found["topics"], _topics),
        (found["subscriptions"], _subscriptions),
        (found["captures"], _captures),
        (found["applies"], _applies),
        (found["channels"], _channels),
    ):
        if rows:
            parts += [Text(), table(rows[:_ROWS_MAX])]
        if len(rows) > _ROWS_MAX:
            parts.append(Text(f"and {len(rows) - _ROWS_MAX:,} more; --json has all of them", "dim"))
    troubles = list(_troubles(found))
    if troubles:
        parts += [Text(), *troubles]
    return Group(*parts)


def _head(found: Row) -> Iterator[RenderableType]:
    owner = found["owner"]
    whose = f"owned by process {owner['pid']} for {duration(owner['open_for_ms'])}"
    if found["opened_by_this_command"]:
        whose = "which nobody had open, so this command opened it"
    yield Text(f"{printable(found['path'])}, {whose}")
    behind = found["watermark"]["behind_ms"]
    if behind is not None:
        held = f", held by {found['watermark']['held_by']}" if behind > _SLOW_MS else ""
        yield _fact("watermark", f"{duration(max(behind, 0))} behind{held}", "yellow" if held else "")
    txns = found["transactions"]
    states = txns["states"]
    rates = f"{txns['commits_per_s']:,.1f} commits/s, {txns['aborts_per_s']:,.1f} aborts/s"
    now = ", ".join(f"{states[name]:,} {name}" for name in ("open", "committing", "aborting"))
    yield _fact("transactions", f"{now}; {rates}")
    expired = f" ({txns['expired']:,} of them expired)" if txns["expired"] else ""
    yield _fact("", f"{txns['committed']:,} committed and {txns['aborted']:,} aborted{expired} so far")
    if txns["committed_and_unwritten"]:
        what = f"{txns['committed_and_unwritten']:,} decided commits are still to be written, in the background"
        yield _fact("", what, "yellow")
    oldest = txns["oldest_open"]
    if oldest is not None:
        left = f"{duration(oldest['timeout_in_ms'])} left" if oldest["timeout_in_ms"] >= 0 else "over its timeout"
        text = f"{oldest['id']}, {duration(oldest['age_ms'])} old, {left}, of {printable(oldest['client_name'])}"
        yield _fact("oldest open", text)
    window = txns["conflict_window"]
    kept = f"{window['keys']:,} keys of {window['commits']:,} commits are kept"
    yield _fact("conflicts", f"{kept} for {window['readers']:,} transactions that read")
    if found["tables"] or found["pipeline"]["checkpoint"]:
        yield from _pipeline(found["pipeline"], owner["open_for_ms"])


def _pipeline(row: Row, open_for_ms: int) -> Iterator[RenderableType]:
    """Where the last checkpoint is, what waits for the next one, and in which stage."""
    waiting = row.get("uncommitted_epochs", 0)
    if row["checkpoint"]:
        # Whatever was written would have had its barrier by now.
        known_ms = min(row["lag_ms"], open_for_ms) - 2 * row.get("interval_ms", open_for_ms)
        is_idle = known_ms > 0 and not (waiting or row["failure"] or row.get("paused"))
        since = "; nothing was written since" if is_idle else ""
        at = f"checkpoint {row['checkpoint']:,} at epoch {row['epoch']:,}"
        yield _fact("pipeline", f"{at}, {duration(row['lag_ms'])} old{since}")
        yield _fact("", f"service time {row['service_time_text']}")
    else:
        yield _fact("pipeline", "no checkpoint yet")
    worker = "no worker runs" if row["worker"] is None else f"worker is process {row['worker']}"
    took = f", the last batch took {duration(row['last_batch_s'] * 1000)}" if row["last_batch_s"] else ""
    yield _fact("", worker + took)
    if "interval_ms" in row:
        every = f"a barrier every {duration(row['interval_ms'])} while something is written"
        yield _fact("", "it is paused" if row["paused"] else every, "yellow" if row["paused"] else "")
    if waiting or row["waits_for"]:
        count = f"{waiting:,} epoch{'s wait' if waiting != 1 else ' waits'}"
        count += ", it is stuck" if row.get("health") == "stuck" else ""
        why = f": {printable(row['waits_for'])}" if row["waits_for"] and row["waits_for"] != row["failure"] else ""
        yield _fact("", count + why, "yellow" if _is_slow(row) else "")
    if row.get("catching_up"):
        yield _fact("catching up", _catching_up(row["catching_up"]), "yellow")
    for each in (row.get("upkeep") or {}).get("running", ()):
        yield _fact("compaction", _compaction(each))
    stages = [(text, row["lag"][name]) for name, text in _STAGES.items() if row["lag"][name] is not None]
    yield _fact("lag", ", ".join(f"{text} {duration(ms)}" for text, ms in stages))


def _catching_up(row: Row) -> str:
    left = "" if row["left_ms"] is None else f", about {duration(row['left_ms'])} left"
    return f"{row['percent']:.0f}%, {row['done']:,} of {row['epochs']:,} epochs that waited{left}"


def _compaction(row: Row) -> str:
    share = f", {min(100 * row['rows'] / row['of'], 100):.0f}%" if row["of"] else ""
    return f"of {printable(str(row['table']))}, shard {row['shard']}: {row['rows']:,} of {row['of']:,} rows{share}"


def _is_slow(row: Row) -> bool:
    return bool(row["failure"]) or row.get("health") in ("slow", "stuck")


def _fact(name: str, text: str, style: str = "") -> RenderableType:
    """A name and what is to be said of it; what does not fit goes on below the text."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=12)
    row.add_column(overflow="fold")
    row.add_row(Text(name, "bold"), Text(text, style))
    return row


def _clients(rows: list[Row]) -> RenderableType:
    titles = ["client", "connected for", "last heard", "transactions"]
    cells = [
        [
            printable(each["name"]),
            duration(each["connected_ms"]),
            "" if each["silent_ms"] is None else f"{duration(each['silent_ms'])} ago",
            f"{each['transactions']:,}",
        ]
        for each in rows
    ]
    return make_table(titles, cells, right="transactions")


def _tables(rows: list[Row]) -> RenderableType:
    titles = ["table", "key", "columns", "shards", "in channels", "files", "layers", "size"]
    cells = [
        [
            printable(each["name"]),
            printable(", ".join(each["key"])) or "none",
            f"{each['columns']:,}",
            f"{each['shards']:,}",
            " ".join(each["channels"]),
            f"{each['files']:,}",
            f"{each['layers']:,}",
            size(each["bytes"]),
        ]
        for each in rows
    ]
    return make_table(titles, cells, right="columns shards files layers size")


def _views(rows: list[Row]) -> RenderableType:
    cells: list[list[str | Text]] = [
        [
            printable(each["name"]),
            Text(_standing(each), {"live": "", "filling": "yellow"}.get(each["state"], "red")),
            "" if each["age_ms"] is None else duration(each["age_ms"]),
            "" if each["rows"] is None else f"{each['rows']:,}",
            "" if each["files"] is None else f"{each['files']:,}",
            "" if each["last_batch_s"] is None else duration(round(each["last_batch_s"] * 1000)),
            printable(each["error"] or ""),
        ]
        for each in rows
    ]
    return make_table(["view", "state", "age", "rows", "files", "took", "why"], cells, right="age rows files took")


def _standing(view: Row) -> str:
    if view["percent"] is None:
        return view["state"] or "unknown"
    left = "" if view["left_s"] is None else f", {duration(round(view['left_s'] * 1000))} left"
    return f"filling {view['percent']}%{left}"


def _topics(rows: list[Row]) -> RenderableType:
    cells = [
        [printable(each["name"]), f"{each['shards']:,}", " ".join(each["channels"]), f"{each['subscriptions']:,}"]
        for each in rows
    ]
    return make_table(["topic", "shards", "in channels", "subscriptions"], cells, right="shards subscriptions")


def _subscriptions(rows: list[Row]) -> RenderableType:
    titles = ["subscription", "kind", "consumers", "backlog", "lag", "unacked", "pending"]
    cells: list[list[str | Text]] = []
    for each in rows:
        name = printable(f"{each['topic']}/{each['name']}")
        if "backlog" not in each:
            cells.append([name, each["kind"], "", Text("not counted", "dim"), "", "", ""])
            continue
        dead = f", {each['dead_lettered']:,} dead" if each["dead_lettered"] else ""
        cells.append(
            [
                name,
                each["kind"],
                f"{len(each['consumers']):,}",
                f"{each['backlog']:,}{dead}",
                duration(each["lag_ms"]),
                f"{each['unacked']:,}",
                f"{each['pending']:,}",
            ]
        )
    return make_table(titles, cells, right="consumers backlog lag unacked pending")


def _captures(rows: list[Row]) -> RenderableType:
    cells: list[list[str | Text]] = [
        [
            printable(each["name"]),
            Text(each["state"], {"following": "", "snapshot": "yellow", "waiting": "yellow"}.get(each["state"], "red")),
            f"{each['transactions']:,}",
            f"{each['rows']:,}",
            ", ".join(f"{value} {name}" for name, value in each["behind"].items()),
            printable("; ".join([each["error"]] * bool(each["error"]) + _not_taken(each["left_out"]))),
        ]
        for each in rows
    ]
    return make_table(["capture", "state", "transactions", "rows", "behind", "notes"], cells, right="transactions rows")


def _not_taken(tables: dict[str, str]) -> list[str]:
    return [f"without {', '.join(tables)}"] if tables else []


def _applies(rows: list[Row]) -> RenderableType:
    cells: list[list[str | Text]] = [
        [
            _shortened(printable(each["to"])),
            Text(each["state"], {"following": "", "waiting": "yellow"}.get(each["state"], "red")),
            f"{each['transactions']:,}",
            f"{each['rows']:,}",
            duration(each["lag_ms"]),
            printable(each["error"] or each["trouble"] or ""),
        ]
        for each in rows
    ]
    titles = ["apply to", "state", "transactions", "rows", "behind", "notes"]
    return make_table(titles, cells, right="transactions rows behind")


def _shortened(url: str, most: int = 32) -> str:
    """What tells URLs apart: their beginning and their end."""
    return url if len(url) <= most else f"{url[:11]}…{url[12 - most :]}"


def _channels(rows: list[Row]) -> RenderableType:
    cells: list[list[str | Text]] = []
    for each in rows:
        if "tick" not in each:
            cells.append([each["name"], "", "", "", Text("closed", "red")])
            continue
        slow = each["tick_behind_ms"] > _SLOW_MS
        cells.append(
            [
                each["name"],
                f"{each['term']:,}",
                f"{each['position']:,}",
                Text(duration(each["tick_behind_ms"]), "yellow" if slow else ""),
                Text("; ".join(_waits_for(each)), "yellow" if slow else ""),
            ]
        )
    return make_table(["channel", "term", "position", "behind", "waits for"], cells, right="term position behind")


def _waits_for(row: Row) -> Iterator[str]:
    held = row["held_by"]
    if held is not None:
        who = f"transaction {held['transaction']}" if held["transaction"] else "an append"
        where = f" in {', '.join(held['places'][:3])}" if held["places"] else ""
        yield f"{who}{where}, {duration(held['for_ms'])}"
    if row["queued"]:
        yield f"{row['queued']:,} queued"
    if row["kept_for"] is not None:
        yield f"keeps log from {row['kept_for']['position']:,} for {row['kept_for']['transaction']}"


def _troubles(found: Row) -> Iterator[Text]:
    for each in found["troubles"]:
        yield Text(f"TROUBLE  {printable(each)}", "bold red")
    if found["pipeline"]["failure"]:
        yield Text(f"TROUBLE  pipeline: {printable(found['pipeline']['failure'])}", "bold red")
    for each in (*found["tables"], *found["channels"], *found["subscriptions"]):
        if each.get("error"):
            yield Text(f"TROUBLE  {each['name']}: {printable(each['error'])}", "bold red")
    if found["oracle"].get("stalled_by"):
        yield Text(f"TROUBLE  time stands: {printable(str(found['oracle']['stalled_by']))}", "bold red")
