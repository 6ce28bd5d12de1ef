"""Money that never is lost, made or seen half moved, whoever is killed (promises 2, 3, 6 and 7).

Writers ask for transfers between 100 accounts, consumers carry each out as two postings in a topic over 4 channels and
acknowledge the request, in one transaction. Meanwhile one process after the other is killed with SIGKILL at a random
moment, the owner of the database among them, or stands still for longer than its lease, and is replaced.

A reader of all channels looks at every cut: the sum of all postings is 0 and no transfer is there by half or twice. At
the end every transfer that was acknowledged to a writer is there once, and none that nobody asked for.
"""

import os
import random
import time
from collections import Counter

import pytest

import tidegate
from children import Child, owner_pid
from tidegate.runtime.verify import verify
from tidegate.topics.value import decode

SECONDS = float(os.environ.get("TIDEGATE_MONEY_SECONDS", "120"))
SEED = int(os.environ.get("TIDEGATE_MONEY_SEED", "0")) or random.randrange(1, 1 << 32)
ACCOUNTS = 100
CHANNELS = 4
LEASE_S = 3.0

COMMON = r"""
import os, random, sys, threading, time, traceback
import tidegate
from tidegate import DatabaseSettings, LogSettings, errors

path, slot, stop = sys.argv[1], sys.argv[2], sys.argv[3]
settings = DatabaseSettings(
    channels=4, lease_ms=3000, transaction_timeout_ms=10_000,
    log=LogSettings(tick_interval_ms=20, segment_bytes=4 << 20),
)

def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

def transfer(name):
    rng = random.Random(name)
    source, target = rng.sample(range(100), 2)
    return {"id": name, "from": source, "to": target, "amount": rng.randrange(1, 1000)}

def stopped():
    return os.path.exists(stop)

def live(work):
    # What may happen to an honest client: others were faster, the owner died, it was silent for too long itself.
    while not stopped():
        try:
            with tidegate.open(path, settings=settings, name=slot) as db:
                say("ready")
                work(db)
        except errors.LeaseLost as error:
            say(f"# LeaseLost {error}")
        except Exception as error:
            say(f"! {slot}: {type(error).__name__}: {error}")
            traceback.print_exc()
            time.sleep(0.2)
"""

NUMBERED_WRITER = (
    COMMON
    + r"""
def work(db):
    producer = db.producer("requests", slot)
    while not stopped():
        number = producer.next_sequence
        asked = transfer(f"{slot}.{number}")
        done = producer.send(asked, sequence=number, key=asked["from"])
        say(f"asked {asked['id']}")
        if number % 20 == 0:  # As if the answer had been lost.
            if not producer.send(asked, sequence=number, key=asked["from"]).duplicate:
                say(f"! {asked['id']} was sent twice")
        time.sleep(0.002)

live(work)
"""
)

WRITER = (
    COMMON
    + r"""
def work(db):
    number = 0
    while not stopped():
        number += 1
        asked = transfer(f"{slot}-{os.getpid()}-{time.monotonic_ns()}.{number}")
        say(f"asking {asked['id']}")
        try:
            db.send("requests", asked, key=asked["from"])
            say(f"asked {asked['id']}")
        except errors.OutcomeUnknown as error:
            say(f"# OutcomeUnknown {error}")
        time.sleep(0.002)

live(work)
"""
)

CONSUMER = (
    COMMON
    + r"""
def move(db, messages):
    with db.transaction() as txn:
        for message in messages:
            asked = message.value
            for account, delta in ((asked["from"], -asked["amount"]), (asked["to"], asked["amount"])):
                txn.send("postings", {"id": asked["id"], "account": account, "delta": delta}, key=account)
        txn.ack(messages)
    return txn

def work(db):
    rng = random.Random()
    with db.subscribe("requests", "movers", kind="shared") as consumer:
        while not os.path.exists(stop + ".all"):
            messages = consumer.receive_many(rng.randrange(1, 40), timeout=0.5)
            if not messages:
                continue
            try:
                txn = move(db, messages)
                say(f"moved {len(messages)} {int(txn.commit_timestamp)}")
            except (errors.Conflict, errors.TransactionAborted, errors.OutcomeUnknown) as error:
                say(f"# {type(error).__name__} {error}")

def stopped():
    return os.path.exists(stop + ".all")

live(work)
"""
)


class Cuts:
    """Follows all channels, and checks every cut: what lies at or below T, the smallest of their ticks."""

    def __init__(self, path):
        self.path = path
        self.log = tidegate.read_log(path)
        self.readers = {f"data-{number}": None for number in range(CHANNELS)}
        self.ticks = dict.fromkeys(self.readers, 0)
        self.waiting = []
        """Postings above the last cut: (timestamp, channel, transaction, posting)."""
        self.seen = []
        """In the order of cuts."""
        self.halves = {}
        self.moved = Counter()
        self.total = 0
        self.cuts = 0
        self.last = 0
        for name in self.readers:
            self.readers[name] = self.log.transaction_reader(name)

    def look(self):
        """Take what there is, and check the cut that it makes; whether there was something."""
        found = False
        for name, reader in self.readers.items():
            while (delivery := reader.poll()) is not None:
                found = True
                assert delivery.tick.time_tick > self.ticks[name], f"{name}: ticks only rise"
                for message in delivery.messages():
                    assert self.ticks[name] < message.time_tick <= delivery.tick.time_tick, "no message below a tick"
                    if message.vchannel.startswith("topic/") and ".postings/" in message.vchannel:
                        posting = decode(message.body).value
                        self.waiting.append((int(message.time_tick), name, message.txn, posting))
                self.ticks[name] = int(delivery.tick.time_tick)
        cut = min(self.ticks.values())
        if cut > self.last:
            self._check(cut)
        return found

    def _check(self, cut):
        ready = sorted((each for each in self.waiting if each[0] <= cut), key=lambda each: each[:2])
        self.waiting = [each for each in self.waiting if each[0] > cut]
        for timestamp, _, txn, posting in ready:
            assert txn is not None, "postings are only sent in transactions"
            id = posting["id"]
            self.total += posting["delta"]
            if id in self.halves:
                other = self.halves.pop(id)
                assert other[:2] == (timestamp, txn), f"transfer {id} was moved at two times: {other} and {timestamp}"
                assert other[2]["delta"] == -posting["delta"], f"transfer {id}: {other[2]} and {posting}"
                self.moved[id] += 1
                assert self.moved[id] == 1, f"transfer {id} was carried out twice"
            else:
                self.halves[id] = (timestamp, txn, posting)
        assert not self.halves, f"at the cut {cut} only a half of these was there: {sorted(self.halves.items())[:5]}"
        assert self.total == 0, f"at the cut {cut} the sum is {self.total}"
        self.seen.extend(each[:3] for each in ready)
        self.cuts += 1
        self.last = cut

    def close(self):
        for reader in self.readers.values():
            reader.close()


class Bank:
    """The processes, one for each slot, and what they said."""

    def __init__(self, path, tmp_path):
        self.path = path
        self.stop = tmp_path / "stop"
        self.errors = tmp_path / "stderr.txt"
        self.codes = {
            "numbered-0": NUMBERED_WRITER,
            "numbered-1": NUMBERED_WRITER,
            "writer": WRITER,
            "mover-0": CONSUMER,
            "mover-1": CONSUMER,
            "mover-2": CONSUMER,
        }
        self.running = {}
        self.ended = []
        self.stops = {}
        self.killed = Counter()

    def start(self, slot):
        self.running[slot] = Child(self.codes[slot], self.path, slot, self.stop, errors=self.errors)

    def replace(self, slot):
        child = self.running.pop(slot)
        self.killed["owner" if child.pid == owner_pid(self.path) else slot.split("-")[0]] += 1
        self.end(child)
        self.start(slot)

    def end(self, child):
        child.kill()
        self.ended.append(child)
        self.stops.pop(child, None)

    def disturb(self, rng):
        """Kill one that has begun, the owner more often than others; or let one that does not own it stand still."""
        now = time.monotonic()
        for child, until in list(self.stops.items()):
            if now > until:
                child.go_on()
                del self.stops[child]
        owner = owner_pid(self.path)
        alive = [slot for slot, child in self.running.items() if child.is_ready and not child.is_stopped]
        if not alive:
            return
        chosen = rng.choice(alive)
        owning = [slot for slot in alive if self.running[slot].pid == owner]
        if owning and rng.random() < 0.3:
            chosen = owning[0]
        child = self.running[chosen]
        if child.pid != owner and rng.random() < 0.15 and not self.stops:
            child.stop()
            self.stops[child] = now + LEASE_S * 1.5
            self.killed["stopped"] += 1
        else:
            self.replace(chosen)

    def all(self):
        return [*self.ended, *self.running.values()]

    def said(self, what):
        """All lines that begin with `what`, without it."""
        return [
            line[len(what) + 1 :] for child in self.all() for line in list(child.lines) if line.startswith(what + " ")
        ]

    def check(self):
        complaints = [each for child in self.all() for each in child.complaints]
        assert not complaints, f"seed {SEED}: {complaints[:5]}; {self.errors.read_text()[-3000:]}"

    def kill_all(self):
        for child in list(self.running.values()):
            child.go_on()
            self.end(child)
        self.running.clear()


def requests_of(path):
    """Every request in the log, by id, and how often it is there."""
    found = Counter()
    log = tidegate.read_log(path)
    for number in range(CHANNELS):
        with log.transaction_reader(f"data-{number}") as reader:
            while (delivery := reader.poll()) is not None:
                for message in delivery.messages():
                    if ".requests/" in message.vchannel and message.vchannel.startswith("topic/"):
                        found[decode(message.body).value["id"]] += 1
    return found


def wait_for(condition, timeout_s, what, bank, cuts):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"seed {SEED}: {what} did not come within {timeout_s} s"
        if not cuts.look():
            time.sleep(0.02)
        bank.check()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
def test_money_is_moved_once_and_never_seen_half_moved_whoever_is_killed(tmp_path):
    path = tmp_path / "bank.tide"
    print(f"seed {SEED}; repeat with TIDEGATE_MONEY_SEED={SEED}, shorter with TIDEGATE_MONEY_SECONDS")
    with tidegate.open(path, settings=tidegate.DatabaseSettings(channels=CHANNELS)) as db:
        db.sql("CREATE TOPIC requests SHARDS 3")
        db.sql(f"CREATE TOPIC postings SHARDS {CHANNELS}")
        db.subscribe("requests", "movers", kind="shared").close()
    rng = random.Random(SEED)
    bank, cuts = Bank(path, tmp_path), Cuts(path)
    try:
        for slot in bank.codes:
            bank.start(slot)
        end = time.monotonic() + SECONDS
        next_kill = time.monotonic() + 2.0
        while time.monotonic() < end:
            if not cuts.look():
                time.sleep(0.005)
            bank.check()
            if time.monotonic() > next_kill:
                bank.disturb(rng)
                next_kill = time.monotonic() + rng.uniform(0.4, 1.6)
        for child in bank.stops:
            child.go_on()
        bank.stop.touch()
        writers = [slot for slot in bank.running if not slot.startswith("mover")]
        wait_for(
            lambda: all(bank.running[slot].process.poll() is not None for slot in writers),
            60,
            "the writers' end",
            bank,
            cuts,
        )
        asked = requests_of(path)
        wait_for(lambda: len(cuts.moved) >= len(asked), 90, f"the last of {len(asked)} transfers", bank, cuts)
        (tmp_path / "stop.all").touch()
        wait_for(
            lambda: all(each.process.poll() is not None for each in bank.running.values()), 60, "the end", bank, cuts
        )
    finally:
        bank.kill_all()
        cuts.close()
    bank.check()
    met = Counter(line.split()[0] for line in bank.said("#"))
    print(f"{len(asked):,} transfers, {cuts.cuts:,} cuts, ended {dict(bank.killed)}, met {dict(met)}")

    acknowledged = bank.said("asked")
    assert acknowledged
    assert set(asked.values()) == {1}, "every request is in the log once"
    assert not set(acknowledged) - set(asked), "what was acknowledged to a writer is in the log"
    assert set(asked) - set(acknowledged) <= set(bank.said("asking")) | {
        each for each in asked if each.startswith("numbered")
    }
    for slot in ("numbered-0", "numbered-1"):
        numbers = sorted(int(each.split(".")[1]) for each in asked if each.startswith(slot + "."))
        assert numbers == list(range(len(numbers))), f"{slot}: the numbers have no gap"
    assert cuts.moved == asked, "every request was carried out once, and nothing else was"

    again = Cuts(path)
    try:
        while again.look():
            pass
    finally:
        again.close()
    assert again.seen == cuts.seen, "whoever reads it later sees the same postings at the same times"
    commits = [int(line.split()[1]) for line in bank.said("moved")]
    assert set(commits) <= {each[0] for each in cuts.seen}, "every commit that was acknowledged is at its place"
    with tidegate.open(path) as db, db.subscribe("requests", "movers", kind="shared") as consumer:
        assert consumer.receive(timeout=0.5) is None, "every request is acknowledged"
    for number in range(CHANNELS):
        assert not verify(tidegate.read_log(path).channel(f"data-{number}"), f"data-{number}").problems
