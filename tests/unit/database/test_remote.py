"""A database through the process that owns it: the same answers, the same errors, and nothing for whoever was given up.

Issue 3: from many processes, over a socket guarded by file permissions; a client that lost its lease is a zombie.
`test_database.py` runs all of its specifications through the socket as well.
"""

import inspect
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import tidegate
from children import Child
from database_rig import Desk, quick
from helpers import eventually, held_open
from tidegate import errors
from tidegate.database.backend import Backend
from tidegate.database.clients import Clients
from tidegate.database.remote import frames, server
from tidegate.database.remote.address import find
from tidegate.database.remote.client import RemoteBackend


@pytest.fixture
def open_desk(tmp_path):
    opened = []

    def open_(through="client", **options):
        desk = Desk(tmp_path / f"{len(opened)}.tide", through, **options)
        opened.append(desk)
        desk.db.sql("CREATE TOPIC t SHARDS 4")
        desk.db.sql("CREATE TOPIC one")
        return desk

    yield open_
    for each in opened:
        each.close()


def subscribed(db, topic, name):
    """A consumer, or None while somebody else has the subscription to himself."""
    try:
        return db.subscribe(topic, name)
    except errors.InUse:
        return None


class TestSameAnswers:
    """What `test_database.py` does not run through both: subscriptions and producers."""

    @pytest.fixture(params=["owner", "client"])
    def desk(self, request, open_desk):
        return open_desk(request.param)

    def test_every_call_of_a_backend_is_one_of_the_server(self):
        local = {"is_owner", "channels", "database_id", "limits", "close"}
        wanted = {name for name, _ in inspect.getmembers(Backend) if not name.startswith("_")} - local
        assert wanted == set(server.CALLS) - {"hello", "bye", "alive"}

    def test_messages_of_every_kind_are_received_as_they_were_sent(self, desk):
        rows = pa.table({"k": [1, 2], "when": pa.array([0, 1], pa.timestamp("ms")), "raw": [b"\0", None]})
        with desk.db.subscribe("t", "s") as consumer:
            desk.db.send("t", {"a": [1, None]}, key="k", headers={"h": "1"})
            desk.db.send("t", b"\x00\xff")
            desk.db.send("t", rows, key="k")
            got = []
            while (message := consumer.receive(1.0)) is not None:
                got.append(message)
            by_type = {type(each.value): each for each in got if not each.row}
            assert by_type[dict].value == {"a": [1, None]} and by_type[bytes].value == b"\x00\xff"
            assert (by_type[dict].key, by_type[dict].headers) == ("k", {"h": "1"})
            assert sorted((each.row for each in got if each.row), key=lambda row: row["k"]) == rows.to_pylist()
            assert {each.timestamp for each in got} == {each.timestamp for each in desk.all()}
            assert all(each.topic == "t" and each.redelivery_count == 0 for each in got)
            consumer.ack(got)
            assert consumer.stats()["backlog"] == 0

    def test_acknowledgements_of_every_kind(self, desk):
        consumer = desk.db.subscribe("one", "s")
        for number in range(6):
            desk.db.send("one", number)
        messages = [consumer.receive(5) for _ in range(6)]
        assert [each.value for each in messages] == list(range(6))
        consumer.ack(messages[1])
        consumer.nack(messages[3])
        again = consumer.receive(5)
        assert (again.value, again.redelivery_count) == (3, 1)
        with desk.db.transaction() as txn:
            txn.ack([messages[0], again])
        aborted = desk.db.transaction()
        aborted.ack(messages[2])
        with pytest.raises(errors.Conflict), desk.db.transaction() as second:
            second.ack(messages[2])
        aborted.abort()
        assert consumer.receive(5).value == 2
        consumer.ack_cumulative(messages[4])
        consumer.redeliver()
        assert consumer.receive(5).value == 5
        assert consumer.stats()["backlog"] == 1
        with pytest.raises(errors.InUse, match="s"):
            desk.another().subscribe("one", "s")
        consumer.close()
        with pytest.raises(errors.Closed):
            consumer.receive(0.1)
        desk.db.unsubscribe("one", "s")
        with pytest.raises(errors.NotFound, match="s"):
            desk.db.unsubscribe("one", "s")

    def test_only_what_was_received_can_be_acknowledged(self, desk):
        consumer = desk.db.subscribe("one", "s")
        for wrong in ("message", None, 3):
            with pytest.raises(errors.InvalidArgument, match="received"):
                consumer.ack([wrong])
            with pytest.raises(errors.InvalidArgument, match="received"), desk.db.transaction() as txn:
                txn.ack([wrong])

    def test_a_repeated_send_of_a_producer_is_recognised_and_an_older_one_fenced(self, desk):
        producer = desk.db.producer("t", "p")
        first = producer.send("a", key=1)
        assert (first.sequence, first.duplicate) == (0, False)
        again = producer.send("a", sequence=0, key=1)
        assert again.duplicate and again.timestamp == first.timestamp
        rows = producer.send(pa.table({"k": [1, 2, 3]}), key="k")
        assert rows.sequence == 3
        newer = desk.another().producer("t", "p")
        assert newer.next_sequence == 4 and newer.epoch > producer.epoch
        with pytest.raises(errors.LeaseLost, match="p"):
            producer.send("zombie")
        assert newer.send("b", sequence=3).duplicate
        with pytest.raises(errors.InvalidArgument):
            newer.send("gap", sequence=9)
        with pytest.raises(errors.InvalidArgument, match="at least 0"):
            newer.send("x", sequence=-1)
        values = desk.values()
        assert len(values) == 4 and "zombie" not in values and "gap" not in values


ERRORS = [
    errors.InvalidArgument("a"),
    errors.LimitExceeded("the size", 12, 10, "size_max"),
    errors.NotFound("b"),
    errors.TransactionNotFound("c"),
    errors.InvalidTransactionState("d", state="ABORTED"),
    errors.Backpressure("e"),
    errors.DiskFull("f"),
    errors.WaitTimeout("g"),
    errors.Conflict("h"),
    errors.TransactionAborted("i", reason="by hand"),
    errors.TransactionExpired("j", reason="timeout"),
    errors.OutcomeUnknown("k"),
    errors.Fenced("data-1", 3, 4),
    errors.InUse("l"),
    errors.LeaseLost("m"),
    errors.Closed("n"),
    errors.Truncated("o"),
    errors.Corruption("/a/file", 77, "bad checksum"),
    errors.InvariantBroken("p"),
]


class TestErrors:
    @pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
    def test_they_arrive_as_what_they_are_with_their_facts(self, error):
        head, _ = frames.unpack(frames.pack({"error": frames.pack_error(error)}))
        with pytest.raises(errors.TidegateError) as raised:
            frames.raise_error(head["error"])
        assert type(raised.value) is type(error) and str(raised.value) == str(error)
        assert vars(raised.value) == vars(error)

    @pytest.mark.parametrize("kind", ["NoSuchError", "Exception", "annotations", "", None])
    def test_one_that_is_not_known_here_is_reported_as_a_defect(self, kind):
        with pytest.raises(errors.InvariantBroken, match=r"the owner failed.*broken pipe"):
            frames.raise_error({"type": kind, "message": "broken pipe"})


class TestFrames:
    @pytest.mark.parametrize("blobs", [[], [b""], [b"a", b"", b"x" * 100_000]])
    def test_what_is_packed_is_unpacked(self, blobs):
        head, found = frames.unpack(frames.pack({"a": [1, "ü", None]}, blobs))
        assert head == {"a": [1, "ü", None]} and [bytes(each) for each in found] == blobs

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\0" * 7,
            b"\xff" * 64,
            frames.pack({"a": 1}, [b"xyz"])[:-1],
            frames.pack({}) + b"!",
            b"\4\0\0\0\0\0\0\0null",
        ],
    )
    def test_anything_else_is_refused(self, frame):
        with pytest.raises(errors.InvalidArgument, match="not a request"):
            frames.unpack(frame)


def ask(desk, call, body):
    """A raw request; what came back."""
    with flight.connect(find(desk.path)) as client:
        (found,) = client.do_action(flight.Action(call, body), flight.FlightCallOptions(timeout=10))
        return frames.unpack(memoryview(found.body))[0]


class TestServer:
    @pytest.mark.parametrize(
        ("call", "body", "kind", "says"),
        [
            ("nonsense", frames.pack({"client": "x"}), "InvalidArgument", "no call 'nonsense'"),
            ("begin", b"garbage", "InvalidArgument", "not a request"),
            ("begin", b"", "InvalidArgument", "not a request"),
            ("begin", frames.pack({}), "LeaseLost", "open the database again"),
            ("begin", frames.pack({"client": "nobody"}), "LeaseLost", "nobody"),
        ],
    )
    def test_what_it_does_not_understand_is_refused_and_it_lives_on(self, open_desk, call, body, kind, says):
        desk = open_desk()
        error = ask(desk, call, body)["error"]
        assert error["type"] == kind and says in error["message"]
        desk.db.send("t", "on")
        assert desk.values() == ["on"]

    def test_a_request_that_lacks_something_is_the_clients_mistake(self, open_desk):
        desk = open_desk()
        ask(desk, "hello", frames.pack({"client": "raw", "name": "raw"}))
        for call in sorted(set(server.CALLS) - {"hello", "bye", "alive", "now", "transactions", "status"}):
            error = ask(desk, call, frames.pack({"client": "raw"}))["error"]
            assert error["type"] == "InvalidArgument", (call, error)
        assert "ok" in ask(desk, "status", frames.pack({"client": "raw"}))

    def test_an_owner_of_another_version_is_named(self, open_desk, monkeypatch):
        desk = open_desk("owner")
        hello = server.CALLS["hello"]
        monkeypatch.setitem(server.CALLS, "hello", lambda asked: {**hello(asked), "version": 99})
        with pytest.raises(errors.Unavailable, match=rf"process {os.getpid()}.*99"):
            desk.another()

    def test_its_socket_is_for_this_user_only(self, open_desk):
        desk = open_desk()
        socket = Path(find(desk.path).removeprefix("grpc+unix://"))
        assert socket.parent == desk.path.absolute()
        for path, kind in ((socket, stat.S_ISSOCK), (desk.path / "owner.json", stat.S_ISREG)):
            mode = path.stat().st_mode
            assert kind(mode) and stat.S_IMODE(mode) == 0o600, path
        desk.close()
        assert not list(desk.path.glob("*.sock"))

    def test_a_client_that_was_quiet_while_the_owner_changed_goes_on_with_the_next(self, tmp_path):
        """Promise 6. Its connection is made again by itself, and must not end at an owner that does not know it."""
        path = tmp_path / "q.tide"
        first = tidegate.open(path, settings=quick())
        first.sql("CREATE TOPIC t")
        with tidegate.open(path, settings=quick()) as client:
            txn = client.transaction()
            txn.send("t", 1)
            first.close()
            with tidegate.open(path, settings=quick()) as second:
                assert second.is_owner and not client.is_owner
                txn.commit()
                client.send("t", 2)
                assert client.life == 2 and len(list(path.glob("*.sock"))) == 1

    def test_a_directory_too_long_for_a_socket_has_it_in_a_private_one(self, tmp_path, monkeypatch):
        short = tmp_path / "tmp"
        short.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(short))
        path = tmp_path / ("deep" * 20) / ("deeper" * 10)
        path.parent.mkdir()
        with tidegate.open(path, settings=quick()) as owner, tidegate.open(path, settings=quick()) as client:
            assert not client.is_owner
            owner.sql("CREATE TOPIC t")
            client.send("t", 1)
            socket = Path(find(path).removeprefix("grpc+unix://"))
            assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700 and socket.parent.parent == short
        assert not list(short.iterdir()), "nothing is left behind"

    def test_a_private_directory_that_a_killed_owner_left_is_removed_by_the_next(self, tmp_path, monkeypatch):
        short = tmp_path / "tmp"
        short.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(short))
        path = tmp_path / ("deep" * 20) / ("deeper" * 10)
        path.parent.mkdir()
        code = (
            "import os, sys, tempfile, tidegate as t; tempfile.tempdir = sys.argv[2]; t.open(sys.argv[1]); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code, str(path), str(short)], check=True, timeout=60)
        (left,) = short.iterdir()
        with tidegate.open(path, settings=quick()):
            assert not left.exists() and len(list(short.iterdir())) == 1

    def test_nothing_stays_open_when_it_is_closed(self, open_desk):
        before = {each.name for each in threading.enumerate()}
        desk = open_desk()
        desk.db.send("t", 1)
        desk.close()
        assert not held_open(desk.path)
        eventually(lambda: {each.name for each in threading.enumerate()} <= before, 5, "the end of all threads")


class TestProcesses:
    def test_another_process_uses_it_through_its_owner(self, open_desk):
        desk = open_desk("owner")
        code = """
import sys, tidegate
with tidegate.open(sys.argv[1], name="till 3") as db:
    assert not db.is_owner
    with db.transaction() as txn:
        txn.send("t", "from there", key=1)
        txn.send("one", "as well")
    assert [each["name"] for each in db.status()["clients"] if each["name"] == "till 3"]
    print(int(txn.commit_timestamp), txn.id)
"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(desk.path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        timestamp, id = done.stdout.split()
        assert desk.values() == ["from there"] and desk.values("one") == ["as well"]
        (found,) = desk.all()
        assert int(found.timestamp) == int(timestamp)
        assert id in [each["id"] for each in desk.db.transactions()]

    def test_when_the_owner_closes_another_one_takes_over_and_the_rest_go_on(self, open_desk):
        desk = open_desk(transaction_buffer_bytes=500)
        third = desk.another()
        desk.db.send("one", "before")
        consumer = desk.db.subscribe("one", "s")
        producer = third.producer("t", "p")
        producer.send("p0")
        assert consumer.receive(5).value == "before"
        kept, ahead = desk.db.transaction(), third.transaction()
        kept.send("t", "kept")
        for number in range(5):
            ahead.send("t", ["ahead", number, "x" * 300], key=number)
        desk.owner.close()
        kept.commit()
        ahead.commit()
        owners = [each for each in (desk.db, third) if each.is_owner]
        assert len(owners) == 1
        desk.owner = owners[0]
        assert consumer.receive(5).value == "before", "what was not acknowledged is delivered again"
        consumer.ack(consumer.receive(0.1) or [])
        assert producer.send("p0", sequence=0).duplicate
        assert not producer.send("p1").duplicate
        third.send("t", "after")
        values = [each if isinstance(each, str) else tuple(each[:2]) for each in desk.values()]
        assert sorted(map(str, values)) == sorted(
            map(str, ["p0", "p1", "kept", "after", *[("ahead", number) for number in range(5)]])
        )

    def test_what_was_received_through_an_owner_that_is_gone_cannot_be_acknowledged_any_more(self, open_desk):
        """Somebody else may have it by now; whoever gets it again can."""
        desk = open_desk()
        desk.db.send("one", 1)
        consumer = desk.db.subscribe("one", "s", kind="shared")
        message = consumer.receive(5)
        desk.owner.close()
        desk.owner = desk.db
        desk.db.status()
        with pytest.raises(errors.Conflict, match="delivered again"):
            consumer.ack(message)
        with pytest.raises(errors.Conflict, match="delivered again"), desk.db.transaction() as txn:
            txn.ack(message)
        again = consumer.receive(5)
        with desk.db.transaction() as txn:
            txn.ack(again)
        assert consumer.receive(0.1) is None

    def test_a_client_that_missed_an_answer_comes_again_with_its_transactions_and_consumers(self, open_desk):
        """Its exclusive subscription is its own still, and its commit is carried out once."""
        desk = open_desk(transaction_buffer_bytes=100)
        desk.db.send("one", "message")
        consumer = desk.db.subscribe("one", "s")
        assert consumer.receive(5).value == "message"
        txn, committed = desk.db.transaction(), desk.db.transaction()
        txn.send("t", ["mine", "x" * 200])
        committed.send("t", "once")
        writes, keys = committed._rest()
        timestamp = desk.db.backend.commit(committed.id, writes, keys, None)  # The answer is lost.
        desk.db._reconnect(desk.db.life, RuntimeError("no answer"))
        assert committed.commit() == timestamp
        again = consumer.receive(5)
        assert again.value == "message"
        txn.ack(again)
        txn.commit()
        assert consumer.receive(0.1) is None
        assert sorted(map(str, desk.values())) == sorted(map(str, [["mine", "x" * 200], "once"]))


class TestLeases:
    @pytest.fixture
    def silent(self, monkeypatch):
        """Clients that are opened from now on do not say that they live."""
        monkeypatch.setattr(RemoteBackend, "_keep_alive", lambda self: None)

    @pytest.fixture
    def silence(self, monkeypatch):
        """Once it is set, clients do not say any more that they live."""
        found = threading.Event()
        call = RemoteBackend._call

        def unless_silent(self, name, *given, **options):
            return (None, []) if name == "alive" and found.is_set() else call(self, name, *given, **options)

        monkeypatch.setattr(RemoteBackend, "_call", unless_silent)
        return found

    def test_a_silent_client_loses_its_transactions_and_consumers_for_good(self, open_desk, silence):
        """Issue 3, zombies: it cannot commit, append or acknowledge into what went on without it."""
        desk = open_desk(lease_ms=1_000, transaction_buffer_bytes=500)
        desk.owner.send("one", "message")
        consumer = desk.db.subscribe("one", "s")
        message = consumer.receive(5)
        kept, ahead, acked = (desk.db.transaction(timeout=60) for _ in range(3))
        kept.send("t", "kept")
        ahead.send("t", "x" * 1_000)
        acked.ack(message)
        producer = desk.db.producer("t", "p")
        assert len(desk.open_transactions()) == 3
        ids = {str(each.id) for each in (kept, ahead, acked)}
        silence.set()
        desk.db = desk.owner  # From here on only the owner is asked.
        eventually(lambda: not desk.open_transactions(), 5, "the end of its transactions")
        rows = [each for each in desk.owner.transactions() if each["id"] in ids]
        assert {each["reason"] for each in rows} == {"lease"}
        # Its consumers are given up right after its transactions.
        other = eventually(lambda: subscribed(desk.owner, "one", "s"), 10, "a free subscription")
        again = other.receive(5)
        assert again.value == "message" and again.redelivery_count >= 1, "it goes to others"
        zombie = [kept.commit, ahead.commit, acked.commit, lambda: ahead.send("t", "y" * 1_000)]
        zombie += [lambda: consumer.ack(message), lambda: consumer.receive(0.1), lambda: producer.send("z")]
        for call in zombie:
            with pytest.raises((errors.LeaseLost, errors.TransactionAborted, errors.InvalidTransactionState)):
                call()
        assert not desk.all()
        other.ack(again)
        assert other.stats()["backlog"] == 0

    def test_its_handle_says_what_to_do_and_a_new_one_works(self, open_desk, silent):
        desk = open_desk(lease_ms=1_000)
        txn = desk.db.transaction()
        eventually(lambda: len(desk.owner.status()["clients"]) == 1, 5, "its end")
        for call in (txn.commit, desk.db.status, lambda: desk.db.send("t", 1), txn.abort):
            with pytest.raises(errors.LeaseLost, match="open the database again"):
                call()
        with tidegate.open(desk.path, settings=quick()) as again:
            again.send("t", "again")
        assert desk.values() == ["again"]

    def test_requests_are_signs_of_life(self, open_desk, silent):
        desk = open_desk(lease_ms=1_000)
        txn = desk.db.transaction()
        for _ in range(12):
            time.sleep(0.1)
            desk.db.status()
        txn.send("t", 1)
        txn.commit()

    def test_an_idle_client_that_lives_keeps_everything(self, open_desk):
        desk = open_desk(lease_ms=300)
        txn = desk.db.transaction()
        txn.send("t", "patient")
        time.sleep(1.0)
        txn.commit()
        assert desk.values() == ["patient"]

    def test_an_owner_that_stood_still_gives_nobody_up_for_it(self):
        """It could not hear them; each gets the time on top."""
        now = [0.0]
        clients = Clients(lambda: now[0])
        clients.add("a", "a", 1_000)
        now[0] = 0.5
        assert clients.take_silent() == []
        now[0] = 60.0
        assert clients.take_silent() == []
        now[0] = 60.4
        assert clients.take_silent() == []
        now[0] = 60.9
        assert clients.take_silent() == ["a"], "0.5 s before, and 0.9 s after"
        with pytest.raises(errors.LeaseLost, match="client a"):
            clients.check("a")

    @pytest.mark.slow
    def test_a_process_that_stood_still_for_too_long_finds_out_when_it_goes_on(self, open_desk, tmp_path):
        """SIGSTOP: it does not know that time went by."""
        desk = open_desk("owner", lease_ms=1_000, transaction_buffer_bytes=500)
        desk.db.send("one", "message")
        code = """
import os, sys, time, tidegate
from tidegate import errors
db = tidegate.open(sys.argv[1], name="zombie")
consumer = db.subscribe("one", "s")
message = consumer.receive(10)
kept, ahead, acked = (db.transaction() for _ in range(3))
kept.send("t", "kept")
ahead.send("t", "x" * 1000)
acked.ack(message)
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
for call in (kept.commit, ahead.commit, acked.commit, lambda: consumer.ack(message)):
    try:
        call()
        print("done", flush=True)
    except errors.TidegateError as error:
        print(type(error).__name__, flush=True)
"""
        flag = tmp_path / "flag"
        child = Child(code, desk.path, flag, errors=tmp_path / "stderr.txt")
        try:
            child.wait_ready()
            child.stop()
            eventually(lambda: not desk.open_transactions(), 10, "the end of its transactions")
            # Its consumers are given up right after its transactions.
            with eventually(lambda: subscribed(desk.db, "one", "s"), 10, "a free subscription") as other:
                assert other.receive(5).value == "message"
                flag.touch()
                child.go_on()
                child.wait()
                assert len(child.lines) == 4
                assert set(child.lines) <= {"LeaseLost", "TransactionAborted", "TransactionExpired", "Conflict"}
        finally:
            child.go_on()
            child.kill()
        assert not desk.all()
