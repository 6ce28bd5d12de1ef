"""The owner of a database dies, and the others go on (promises 2, 6 and 7; issue: "each knowing the outcome").

Clients in processes of their own send, commit over one and over several channels, and abort, and say what they were
told. The owner is killed with SIGKILL at a random moment, again and again. Then the log is read: what was acknowledged
is there once and whole; what was refused or aborted is not there; what nobody was told is whole or absent.
"""

import random
import time
from collections import Counter, defaultdict

import pytest

import tidegate
from children import Child, owner_pid
from helpers import eventually
from tidegate import DatabaseSettings, LogSettings
from tidegate.database.remote.client import Disconnected
from tidegate.topics.value import decode

SETTINGS = """DatabaseSettings(
    channels=3, lease_ms=3000, transaction_timeout_ms=20_000, transaction_buffer_bytes=20_000, redo_bytes=10_000,
    log=LogSettings(tick_interval_ms=20, segment_bytes=1 << 20),
)"""

CLIENT = f"""
import os, random, sys, threading, time
import tidegate
from tidegate import DatabaseSettings, LogSettings, errors

path, name, stop = sys.argv[1:4]
settings = {SETTINGS}
db = tidegate.open(path, settings=settings, name=name)
out = threading.Lock()

def say(text):
    with out:
        sys.stdout.write(text + "\\n")
        sys.stdout.flush()

def one(rng, id):
    "All messages in one channel: one write."
    with db.transaction() as txn:
        for part in range(3):
            txn.send("one", {{"id": id, "part": part, "of": 3}}, key="always the same")
    return int(txn.commit_timestamp), 3

def several(rng, id):
    count = rng.randrange(2, 12)
    with db.transaction() as txn:
        for part in range(count):
            txn.send("many", {{"id": id, "part": part, "of": count}}, key=part)
    return int(txn.commit_timestamp), count

def ahead(rng, id):
    "So large that it is written ahead of its commit."
    count = 12
    with db.transaction() as txn:
        for part in range(count):
            txn.send("many", {{"id": id, "part": part, "of": count, "fill": "x" * 5000}}, key=part)
    return int(txn.commit_timestamp), count

def send(rng, id):
    sent = db.send("many", {{"id": id, "part": 0, "of": 1}}, key=rng.randrange(100))
    return int(sent.timestamp), 1

def aborted(rng, id):
    txn = db.transaction()
    for part in range(12):
        txn.send("many", {{"id": id, "part": part, "of": 12, "fill": "x" * rng.choice([0, 5000])}}, key=part)
    txn.abort()
    return None, 0

def work(number):
    rng = random.Random(f"{{name}}{{number}}")
    turn = 0
    while not os.path.exists(stop):
        turn += 1
        id = f"{{name}}.{{number}}.{{turn}}"
        what = rng.choice([one, several, several, ahead, send, send, aborted])
        say(f"trying {{id}}")
        try:
            timestamp, count = what(rng, id)
            say(f"did {{id}} {{timestamp}} {{count}}" if timestamp else f"refused {{id}} aborted")
        except errors.OutcomeUnknown:
            say(f"unknown {{id}}")
        except (errors.TransactionAborted, errors.Conflict) as error:
            say(f"refused {{id}} {{type(error).__name__}}")
        except BaseException as error:
            say(f"! {{id}} {{what.__name__}}: {{type(error).__name__}}: {{error}}")
            raise

say("ready")
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for each in threads:
    each.start()
for each in threads:
    each.join()
say(f"end {{db.life}}")
db.close()
"""


def create(path):
    with tidegate.open(path, settings=eval(SETTINGS)) as db:
        db.sql("CREATE TOPIC one SHARDS 1")
        db.sql("CREATE TOPIC many SHARDS 5")


def everything(path):
    """Every message of every topic: its id, part, parts, timestamp, channel; read by a fresh reader of whole ones."""
    found = []
    log = tidegate.read_log(path)
    for number in range(3):
        with log.transaction_reader(f"data-{number}") as reader:
            while (delivery := reader.poll()) is not None:
                for message in delivery.messages():
                    if not message.vchannel.startswith("topic/"):
                        continue
                    value = decode(message.body).value
                    found.append((value["id"], value["part"], value["of"], int(message.time_tick), number))
    return found


def term_of(path):
    return max(each.term for each in tidegate.read_log(path).segments("data-0"))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))])
def test_every_client_knows_what_became_of_what_it_had_under_way_when_the_owner_was_killed(tmp_path, seed):
    """Also transactions.md facts 6 and 15: what was being committed or aborted is driven on by the next owner."""
    path, stop = tmp_path / "t.tide", tmp_path / "stop"
    create(path)
    rng = random.Random(seed)
    running, ended, number, terms = [], [], 0, [term_of(path)]
    try:
        for _ in range(3):
            running.append(Child(CLIENT, path, f"s{seed}c{number}", stop, errors=tmp_path / f"{number}.txt"))
            number += 1
        for each in running:
            each.wait_ready()
        for _ in range(5):
            time.sleep(rng.uniform(0.2, 1.5))
            owner = owner_pid(path)
            victim = next(each for each in running if each.pid == owner)
            victim.kill()
            running.remove(victim)
            ended.append(victim)
            # One of the others becomes the owner, and the rest go on: each is told something new.
            before = {each: len(each.lines) for each in running}
            eventually(lambda owner=owner: owner_pid(path) != owner, 30, "another owner")
            for each, had in before.items():
                eventually(lambda each=each, had=had: len(each.lines) > had + 10, 30, f"answers for {each.pid}")
            terms.append(term_of(path))
            running.append(Child(CLIENT, path, f"s{seed}c{number}", stop, errors=tmp_path / f"{number}.txt"))
            number += 1
            running[-1].wait_ready()
        stop.touch()
        assert [each.wait() for each in running] == [0] * len(running), [each.complaints for each in running]
    finally:
        for each in running:
            each.kill()
    assert not [each for child in (*running, *ended) for each in child.complaints]
    assert terms == sorted(set(terms)), "every owner has a higher term than the one before"

    parts, places = defaultdict(list), defaultdict(set)
    for id, part, of, timestamp, _ in everything(path):
        parts[id].append((part, of))
        places[id].add(timestamp)
    told = Counter()
    for child in (*running, *ended):
        for line in child.lines:
            what, id, *rest = line.split()
            told[what] += 1
            if what == "did":
                timestamp, count = int(rest[0]), int(rest[1])
                assert sorted(parts[id]) == [(part, count) for part in range(count)], f"{id} was acknowledged"
                assert places[id] == {timestamp}, f"{id} was acknowledged at {timestamp}"
            elif what == "refused":
                assert id not in parts, f"{id} was refused ({rest}), and is there"
    for id, found in parts.items():
        assert sorted(found) == [(part, found[0][1]) for part in range(found[0][1])], f"{id} is torn or twice there"
        assert len(places[id]) == 1, f"{id} is at several times: {places[id]}"
    assert told["did"] > 50 and told["refused"] > 5, told
    # Nobody is left in the dark: an owner that dies does not make an outcome unknown to a client that lives.
    assert not told["unknown"], told


OWNER = f"""
import sys, time
import tidegate
from tidegate import DatabaseSettings, LogSettings

db = tidegate.open(sys.argv[1], settings={SETTINGS.replace("tick_interval_ms=20", "tick_interval_ms=60_000")})
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["one channel", "many channels", "ahead", "send", "producer", "acknowledgement"])
def test_whoever_misses_the_answer_because_the_owner_died_gets_it_from_the_next(tmp_path, monkeypatch, what, when):
    """The owner dies just before it hears of the commit, or just after it has carried it out and before any tick."""
    path = tmp_path / "t.tide"
    create(path)
    owner = Child(OWNER, path, errors=tmp_path / "owner.txt").wait_ready()
    try:
        with tidegate.open(path, settings=eval(SETTINGS)) as db:
            assert not db.is_owner
            producer = db.producer("one", "p")
            consumer = db.subscribe("one", "s")
            db.send("one", {"id": "first", "part": 0, "of": 1})
            backend = db.backend
            answers = []

            def lost(call):
                def then(*arguments):
                    if when == "after":
                        answers.append(call(*arguments))
                    owner.kill()
                    raise Disconnected("the owner died")

                return then

            value = {"id": "x", "part": 0, "of": 1}
            txn = db.transaction()
            if what == "one channel":
                txn.send("one", value)
            elif what == "many channels":
                for part in range(5):
                    txn.send("many", {"id": "x", "part": part, "of": 5}, key=part)
            elif what == "ahead":
                for part in range(9):
                    txn.send("many", {"id": "x", "part": part, "of": 9, "fill": "x" * 5_000}, key=part)
            elif what == "acknowledgement":
                message = consumer.receive(10)
                txn.send("many", value)
                txn.ack(message)
            monkeypatch.setattr(backend, "commit", lost(backend.commit))
            monkeypatch.setattr(backend, "produce", lost(backend.produce))
            if what == "send":
                found = db.send("one", value).timestamp
            elif what == "producer":
                done = producer.send(value)
                assert done.duplicate == (when == "after")
                found = done.timestamp
                assert producer.send(value, sequence=0).duplicate
            else:
                found = txn.commit()
            assert db.is_owner
            if when == "after":
                assert answers and found == (answers[0][0] if what == "producer" else answers[0])
            if what == "acknowledgement":
                assert consumer.receive(0.3) is None, "acknowledged once and for all"
            db.engine.wait_until_visible(db.engine.log.allocate(1))
            places = Counter(timestamp for id, _, _, timestamp, _ in everything(path) if id == "x")
            assert places == {int(found): {"many channels": 5, "ahead": 9}.get(what, 1)}
    finally:
        owner.kill()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_open_transaction_outlives_the_owner_if_nothing_of_it_was_known_there_alone(tmp_path):
    """What was only sent is kept by the client; what was written ahead is in the log. A read was known to the dead
    owner only, so a transaction that read is refused, not waved through."""
    path, stop = tmp_path / "t.tide", tmp_path / "stop"
    create(path)
    owner = Child(CLIENT, path, "owner", stop, errors=tmp_path / "owner.txt").wait_ready()
    try:
        with tidegate.open(path, settings=eval(SETTINGS)) as db:
            assert not db.is_owner
            kept, ahead, read, read_ahead, ended = (db.transaction() for _ in range(5))
            kept.send("many", {"id": "kept", "part": 0, "of": 1})
            for part in range(10):
                ahead.send("many", {"id": "ahead", "part": part, "of": 10, "fill": "x" * 5000}, key=part)
            read.read("many", ["a"])
            read.send("many", {"id": "read", "part": 0, "of": 1}, key="a")
            read_ahead.read("many", ["a"])
            for part in range(10):
                read_ahead.send("many", {"id": "read", "part": part, "of": 10, "fill": "x" * 5000}, key=part)
            first = kept.id
            owner.kill()
            kept.commit()
            assert db.is_owner
            assert kept.id != first, "nobody knew the old id, so nothing can ever be found under it"
            ahead_id = ahead.id
            ahead.commit()
            assert ahead.id == ahead_id, "it went on under its own id"
            with pytest.raises(tidegate.errors.TransactionAborted, match="died"):
                read.commit()
            with pytest.raises(tidegate.errors.Conflict, match="another owner"):
                read_ahead.commit()
            assert read.state == read_ahead.state == "ABORTED"
            ended.abort()
            assert ended.state == "ABORTED"
            ours = {str(each.id) for each in (kept, ahead, read, read_ahead, ended)}
            assert not [each for each in db.transactions() if each["state"] == "open" and each["id"] in ours]
            # What the dead owner itself had begun nobody can go on with: it ends after a lease, not at its timeout.
            eventually(lambda: all(each["state"] != "open" for each in db.transactions()), 8, "the end of all")
    finally:
        owner.kill()
    found = Counter(id for id, *_ in everything(path) if "." not in id)
    assert found == {"kept": 1, "ahead": 10}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_stopped_owner_keeps_the_database_and_whoever_waits_for_it_learns_its_process_in_bounded_time(tmp_path):
    """A process that stands still may go on at any moment, so nobody takes its place; promise 8: it says why."""
    path, stop = tmp_path / "t.tide", tmp_path / "stop"
    create(path)
    owner = Child(CLIENT, path, "owner", stop, errors=tmp_path / "owner.txt").wait_ready()
    settings = DatabaseSettings(channels=3, connect_ms=1500, log=LogSettings(tick_interval_ms=20))
    try:
        with tidegate.open(path, settings=settings) as db:
            db.send("one", {"id": "before", "part": 0, "of": 1})
            owner.stop()
            started = time.monotonic()
            with pytest.raises(tidegate.errors.InUse, match=str(owner.pid)):
                tidegate.open(path, settings=settings)
            assert time.monotonic() - started < 10
            started = time.monotonic()
            with pytest.raises(tidegate.errors.InUse, match=str(owner.pid)):
                db.send("one", {"id": "meanwhile", "part": 0, "of": 1})
            assert time.monotonic() - started < 20
            owner.go_on()
            # The same handle works again, and nothing was done twice or taken away.
            db.send("one", {"id": "after", "part": 0, "of": 1})
            assert not db.is_owner
        stop.touch()
        assert owner.wait() == 0
    finally:
        owner.go_on()
        owner.kill()
    found = Counter(id for id, *_ in everything(path) if "." not in id)
    assert found["before"] == found["after"] == 1
    assert found["meanwhile"] <= 1
