"""Seed 004's example at every consistency level: two clients, one process or two, clocks that agree or do not.

t0   client 1 creates C0          t2   client 2 searches: nothing
t4   client 1 inserts A1          t6   client 2 searches: A1
t8   client 1 inserts A2          t10  client 2 searches: A1, A2
t12  client 1 deletes A1          t14  client 2 searches: A2
"""

import re
import time
from pathlib import Path

import pytest
from seed_client import FarClient, SeedClient

import tidegate
from tidegate import Timestamp

HOUR_S = 3600
A_DAY_S = 24.0 * HOUR_S
EXPECTED = [set(), {"A1"}, {"A1", "A2"}, {"A2"}]
"""After each of client 1's steps; also all that was ever there."""


class Example:
    """The example under way, and what must be true of every answer."""

    def __init__(self, one, two):
        self.one, self.two = one, two
        self.changed = []
        """When each state began: the Timestamps of client 1's steps."""
        self.last = {}
        """The newest cut that each session of client 2 was given."""
        self.lagged = 0

    def state_at(self, at):
        return EXPECTED[sum(each <= at for each in self.changed) - 1]

    def run(self, between=lambda step: None):
        steps = [
            lambda: self.one.create(),
            lambda: self.one.insert("writer", "A1"),
            lambda: self.one.insert("writer", "A2"),
            lambda: self.one.delete("writer", "A1"),
        ]
        for number, step in enumerate(steps):
            self.changed.append(step())
            assert self.changed == sorted(set(self.changed)), "time goes on, whoever owns the database"
            between(number)
            self.search(number)
        assert self.lagged, "levels that need not be fresh were never behind: this says nothing about them"

    def search(self, step):
        """Client 2 searches, at every level."""
        expected, newest = EXPECTED[step], self.changed[-1]

        def search(session, *level, **options):
            found = self.two.search(session, *level, **options)
            assert found.rows == self.state_at(found.at), f"{session}, step {step}: not the state at its Timestamp"
            if options.get("at") is None and options.get("token") is None:
                assert found.at >= self.last.get(session, 0), f"{session}, step {step}: it went back"
                self.last[session] = found.at
            return found

        # May be behind, all of them; that they are what was there at their Timestamp is checked above.
        for lazy in (
            search("own", "session"),
            search("bounded-long", "bounded", staleness=A_DAY_S),
            search("eventual", "eventual"),
        ):
            assert lazy.at >= self.changed[0], "no level shows a table as it was before it was there"
            self.lagged += lazy.rows != expected

        for fresh in (
            search("strong", "strong"),
            search("bounded-0", "bounded", staleness=0),
            search("token", "session", token=self.one.token("writer")),
        ):
            assert fresh.rows == expected and fresh.at >= newest, f"step {step}"

        # By the time that passes, though the owner's Timestamps may stand still for an hour.
        time.sleep(0.11)
        found = search("bounded-short", "bounded", staleness=0.05)
        assert found.rows == expected and found.at >= newest, f"step {step}"

        self.search_by_time(search)
        flushed = (self.one if step % 2 else self.two).flush()
        for session in ("eventual", "own", "bounded-long"):
            level = {"own": "session", "bounded-long": "bounded"}.get(session, session)
            found = search(session, level, staleness=A_DAY_S)
            assert found.rows == expected and found.at >= flushed, f"{session}, step {step}, after a flush"
        self.search_by_time(search)

    def search_by_time(self, search):
        """A named Timestamp is answered as of exactly that, however old."""
        for number, at in enumerate(self.changed):
            found = search("by time", at=at)
            assert (found.rows, found.at) == (EXPECTED[number], at)
            if number:
                found = search("by time", at=at - 1)
                assert (found.rows, found.at) == (EXPECTED[number - 1], at - 1)


@pytest.fixture
def opened():
    found = []
    yield found
    for each in reversed(found):
        each.close()


def pair(opened, owner, first, second):
    """Clients 1 and 2, opened so that client `owner` owns the database."""
    makers = {1: first, 2: second}
    found = {}
    for number in (owner, 3 - owner):
        found[number] = makers[number]()
        opened.append(found[number])
    assert found[owner].is_owner() and not found[3 - owner].is_owner()
    return found[1], found[2]


@pytest.mark.slow
@pytest.mark.parametrize("owner", [1, 2])
def test_two_clients_in_one_process(tmp_path, monkeypatch, opened, owner):
    from tidegate.database import engine

    monkeypatch.setattr(engine, "spark_worker", engine.spark_worker)  # The client sets another; put it back.
    path = tmp_path / "c.tide"
    Example(*pair(opened, owner, lambda: SeedClient(path), lambda: SeedClient(path))).run()


def test_the_clocks_that_are_set_wrong_here_are_all_that_tidegate_asks_for_the_date():
    """`set_clocks` changes `time.time` and `time.time_ns`; if another were asked, the tests below would be void."""
    others = re.compile(r"datetime\.(now|utcnow|today)\(|date\.today\(|time\.(localtime|gmtime|ctime|clock_gettime)")
    assert others.search("when = datetime.now(UTC)")
    for path in Path(tidegate.__file__).parent.rglob("*.py"):
        assert not others.search(path.read_text()), path


@pytest.mark.slow
@pytest.mark.parametrize("owner", [1, 2])
@pytest.mark.parametrize("skew_s", [0, -HOUR_S, HOUR_S], ids=["same-time", "an-hour-slow", "an-hour-fast"])
def test_two_processes_whose_clocks_may_disagree(tmp_path, monkeypatch, opened, owner, skew_s):
    """Seed 004, problem 1: client 2's clock may be an hour behind client 1's, and it misses nothing for that."""
    from tidegate.database import engine

    monkeypatch.setattr(engine, "spark_worker", engine.spark_worker)
    path = tmp_path / "c.tide"
    one, two = pair(
        opened, owner, lambda: SeedClient(path), lambda: FarClient(path, skew_s, errors=tmp_path / "errors")
    )
    assert abs(two.clock_ms() - one.clock_ms() - skew_s * 1000) < 60_000, "the clocks are not as they should be"
    example = Example(one, two)
    example.run()
    if skew_s:
        behind_ms = one.clock_ms() - Timestamp(example.changed[-1]).physical_ms
        assert (abs(behind_ms) < 60_000) == (owner == 1), "whose clock it was by"


@pytest.mark.slow
@pytest.mark.parametrize(("when", "skew_s"), [(0, -HOUR_S), (1, HOUR_S), (2, -HOUR_S), (3, HOUR_S)])
def test_the_owner_is_killed_and_the_next_ones_clock_is_an_hour_off(tmp_path, opened, when, skew_s):
    """Promise 6 and seed 004, problem 1: time never goes back, not even when the clock that suggests it does.

    Client 1 owns the database and is killed after one of its steps was acknowledged; client 2, with its clock an hour
    off, owns it from then on. Client 1 comes back with the token of its session.
    """
    path = tmp_path / "c.tide"
    first = FarClient(path, errors=tmp_path / "errors")
    opened.append(first)
    two = FarClient(path, skew_s, errors=tmp_path / "errors")
    opened.append(two)
    assert first.is_owner() and not two.is_owner()
    example = Example(first, two)

    def between(step):
        if step == when:
            token = first.token("writer")
            first.kill()
            assert two.search("strong", "strong").rows == EXPECTED[step]
            assert two.is_owner()
            example.one = FarClient(path, errors=tmp_path / "errors")
            opened.append(example.one)
            found = example.one.search("writer", "session", token=token)
            assert found.rows == EXPECTED[step]

    example.run(between)
