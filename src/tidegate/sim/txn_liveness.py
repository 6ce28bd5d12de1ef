"""What must come about once all faults have stopped: outcomes, ends, ticks, empty queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.clock.timestamp import Timestamp
from tidegate.sim.auditor import Violation
from tidegate.sim.procedures import Procedure
from tidegate.sim.txn_node import DATA
from tidegate.sim.txn_work import Line, as_pieces
from tidegate.txn.coordinator_records import TxnState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.runtime.steps import Steps
    from tidegate.sim.txn_node import TxnNode
    from tidegate.sim.txn_world import TxnWorld

STEPS_MAX = 6_000


def finish(world: TxnWorld) -> None:
    """Let everything come to its end, one promise after the other."""
    _until(world, lambda: True, "no process could open the database")
    for client in world.clients:
        client.is_finishing = True
    _until(world, lambda: all(client.is_idle for client in world.clients), "a client does not learn its outcome")
    _check_that_an_open_one_blocks_nobody(world)
    ahead = Timestamp(world.auditor.last_timestamp).physical_ms - world.clock.wall_ms()
    world.clock.jump(max(ahead, 0) + 120_000)  # Beyond every deadline.
    _until(world, lambda: not _live(world.nodes[0]), "transactions past their deadline do not end")
    newest = world.auditor.newest
    _until(
        world,
        lambda: all(world.auditor.settled(name) > newest for name in DATA),
        "ticks do not pass the last commit",
    )
    _check_idle(world, world.nodes[0])


def _until(world: TxnWorld, is_so: Callable[[], bool], otherwise: str) -> None:
    for at in range(STEPS_MAX):
        if world.nodes and world.nodes[0].is_serving and is_so():
            return
        if at % 20 == 0 and world.nodes and not world.nodes[0].is_deposed:
            world.nodes[0].advance_oracle()
        world.step()
    node = world.nodes[0] if world.nodes else None
    details = "" if node is None else _state(node)
    raise Violation(f"liveness: after all faults had stopped, {otherwise}{details}")


def _live(node: TxnNode) -> list[str]:
    found = [
        f"{txn.id} {txn.state}"
        for each, _ in node.coordinators
        for txn in each.transactions()
        if not txn.state.has_ended
    ]
    return found + [f"session {each!r}" for name in DATA for each in node.channels[name].writer.sessions]


def _requests(node: TxnNode) -> list[str]:
    return [each.name for each in node.procedures if each.name not in ("look after", "fail client")]


def _state(node: TxnNode) -> str:
    under_way = [each.name for each in node.procedures]
    waiting = {name: each.writer.status().queued for name, each in node.channels.items()}
    return f"; under way {under_way}, queued {waiting}, live {_live(node)[:5]}"


def _check_that_an_open_one_blocks_nobody(world: TxnWorld) -> None:
    """Promise 3: while a transaction has messages in every channel and stays open, others become visible."""
    node, auditor = world.nodes[0], world.auditor
    transactions = node.transactions
    if transactions is None:
        raise Violation("liveness: no transactions")

    def run(name: str, steps: Steps[Any]) -> Any:
        ends: list[tuple[Any, Exception | None]] = []
        node.procedures.append(Procedure(name, steps, lambda value, error: ends.append((value, error))))
        _until(world, lambda: bool(ends), f"{name} does not end")
        value, error = ends[0]
        if error is not None:
            raise Violation(f"liveness: after all faults had stopped, {name} fails: {error}")
        return value

    id = transactions.begin("probe", 60_000)
    hidden = auditor.wanted(dict.fromkeys(DATA, 1))
    auditor.was_refused(hidden)
    ahead = {name: as_pieces([Line("a/0", (f"{name}|{hidden.number}|0|",))]) for name in DATA}
    run("write ahead", transactions.write_ahead(id, ahead))
    deed = auditor.wanted(dict.fromkeys(DATA, 1))
    writes = {name: as_pieces([Line("a/0", (f"{name}|{deed.number}|0|",))]) for name in DATA}
    auditor.asked(deed)
    auditor.was_committed(deed, int(run("commit", transactions.commit(transactions.begin("probe"), writes))))
    plain = {name: auditor.wanted({name: 1}) for name in DATA}
    for name, each in plain.items():
        auditor.asked(each)
        piece = as_pieces([Line("a/0", (f"{name}|{each.number}|0|",))])[0]
        auditor.was_committed(each, int(run("plain", transactions.append_plain(name, piece))))
    newest = auditor.newest
    _until(
        world, lambda: all(auditor.settled(name) > newest for name in DATA), "an open transaction holds up its channels"
    )
    state = node.coordinators[id.coordinator][0].get(id).state
    if state is not TxnState.OPEN:
        raise Violation(f"liveness: transaction {id} was {state} before its deadline")
    world.note("an open transaction blocked nobody")


def _check_idle(world: TxnWorld, node: TxnNode) -> None:
    _until(world, lambda: not _requests(node) and not len(world.network), "something stays under way")
    for name, channel in node.channels.items():
        _until(world, lambda each=channel: not each.has_work and each.commit is None, f"{name} does not come to rest")  # type: ignore[misc]
        status = channel.writer.status()
        if status.queued or status.in_flight_bytes or status.channel.in_flight or status.holders:
            raise Violation(f"liveness: {name} is at rest, and something holds a place or a lock there: {status}")
    if node.transactions is not None:
        unwritten = node.transactions.status()["committed_and_unwritten"]
        if unwritten:
            raise Violation(f"liveness: {unwritten} decided commits are not written")
    world.note(f"all has ended by {Timestamp(world.auditor.newest)}")
