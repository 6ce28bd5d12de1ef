"""Nexmark as tables: people, their auctions and the bids on them, and transactions that change them.

Of fifty events one is a person, three are auctions and the rest are bids, a hundred events to a second of event time.
A bid has an id of its own, so that it can be changed and taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.bench.workloads.nexmark_queries import QUERIES
from tidegate.bench.workloads.workload import Numbers, Transactions, Workload, chosen, numbered, phrases, words

__all__ = ["KEYS", "NEXMARK", "QUERIES", "SCHEMAS", "Changes", "tables"]

_LONG, _TEXT, _TIME = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "person": pa.schema([
        ("id", _LONG), ("name", _TEXT), ("email_address", _TEXT), ("credit_card", _TEXT), ("city", _TEXT),
        ("state", _TEXT), ("date_time", _TIME), ("extra", _TEXT),
    ]),
    "auction": pa.schema([
        ("id", _LONG), ("item_name", _TEXT), ("description", _TEXT), ("initial_bid", _LONG), ("reserve", _LONG),
        ("date_time", _TIME), ("expires", _TIME), ("seller", _LONG), ("category", _LONG), ("extra", _TEXT),
    ]),
    "bid": pa.schema([
        ("id", _LONG), ("auction", _LONG), ("bidder", _LONG), ("price", _LONG), ("channel", _TEXT), ("url", _TEXT),
        ("date_time", _TIME), ("extra", _TEXT),
    ]),
}  # fmt: skip
KEYS: Final[Mapping[str, Sequence[str]]] = {"person": ("id",), "auction": ("id",), "bid": ("id",)}
NEXMARK: Final = Workload("nexmark", SCHEMAS, KEYS, QUERIES)

_FIRST_ID: Final = 1000
"""Of people and of auctions."""
_ROUND: Final = 50
_AUCTIONS: Final = 3
_START: Final = int(datetime(2015, 7, 15, 7, 59, 30, tzinfo=UTC).timestamp()) * 1_000_000
_STEP: Final = 10_000
"""Microseconds between events."""
_CATEGORIES: Final = (10, 15)
_NAMES: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_FAMILIES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_PLACES: Final = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"), ("Portland", "OR"),
    ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"), ("Cheyenne", "WY"),
)  # fmt: skip
_THINGS: Final = ("clock", "chair", "piano", "carpet", "bicycle", "camera", "chest", "vase", "racket", "lamp")
_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple", "channel-10", "channel-11", "channel-12", "channel-13")
_EXTRAS: Final = ("abc", "cccd", "xyz", "accent", "brisk", "cosmic", "delta")
_PATHS: Final = ("abo", "hdx", "kqe", "mwi", "pzy", "ruc")


def tables(events: int, seed: int = 1) -> dict[str, pa.Table]:
    """People, auctions and bids of so many events. Each is sorted by its key."""
    random = np.random.default_rng([seed, 0x4E7])
    at = np.arange(events)
    turn = at % _ROUND
    people, auctions = turn == 0, (turn > 0) & (turn <= _AUCTIONS)
    persons_so_far, auctions_so_far = np.cumsum(people), np.maximum(np.cumsum(auctions), 1)
    bids = ~(people | auctions)
    return {
        "person": _people(random, _FIRST_ID + np.arange(int(people.sum())), _times(at[people])),
        "auction": _auctions(
            random, _FIRST_ID + np.arange(int(auctions.sum())), _times(at[auctions]), persons_so_far[auctions]
        ),
        "bid": _bids(
            random, np.arange(1, int(bids.sum()) + 1), _times(at[bids]), persons_so_far[bids], auctions_so_far[bids]
        ),
    }


def _times(events: Numbers) -> Numbers:
    return _START + events * _STEP


def _stamps(values: Numbers) -> pa.Array:
    return pa.array(values.astype(np.int64)).view(_TIME)


def _recent(random: np.random.Generator, so_far: Numbers, among: int) -> Numbers:
    """An id of the last `among` that there were; the newest of all in a third of the cases: hot ones."""
    back = np.where(random.random(len(so_far)) < 0.33, 0, random.integers(0, among, len(so_far)))
    found: Numbers = _FIRST_ID + np.maximum(so_far - 1 - back, 0)
    return found


def _people(random: np.random.Generator, ids: Numbers, times: Numbers) -> pa.Table:
    count = len(ids)
    first, family = words(random, _NAMES, count), words(random, _FAMILIES, count)
    place = random.integers(0, len(_PLACES), count)
    mail = pc.binary_join_element_wise(pc.utf8_lower(first), pc.utf8_lower(family), ".")
    columns = [
        pa.array(ids), pc.binary_join_element_wise(first, family, " "),
        pc.binary_join_element_wise(mail, pa.scalar("example.com"), "@"),
        numbered("%016d", random.integers(0, 10**16, count)), chosen([city for city, _ in _PLACES], place),
        chosen([state for _, state in _PLACES], place), _stamps(times), phrases(random, _EXTRAS, 2, count),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMAS["person"])


def _auctions(random: np.random.Generator, ids: Numbers, times: Numbers, people: Numbers) -> pa.Table:
    count = len(ids)
    start = random.integers(1, 10_000, count)
    columns = [
        pa.array(ids), phrases(random, _THINGS, 2, count), phrases(random, _EXTRAS, 3, count), pa.array(start),
        pa.array(start + random.integers(1, 10_000, count)), _stamps(times),
        _stamps(times + random.integers(1_000_000, 20_000_000, count)), pa.array(_recent(random, people, 10)),
        pa.array(random.integers(*_CATEGORIES, count)), phrases(random, _EXTRAS, 2, count),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMAS["auction"])


def _bids(
    random: np.random.Generator,
    ids: Numbers,
    times: Numbers,
    people: Numbers,
    auctions: Numbers,
) -> pa.Table:
    count = len(ids)
    channel = random.integers(0, len(_CHANNELS), count)
    path = phrases(random, _PATHS, 3, count)
    number = random.integers(0, 1000, count)
    tails = [
        f"/item.htm?query=1&channel_id={n}" if c >= 4 and n % 5 else "/item.htm?query=1"
        for c, n in zip(channel.tolist(), number.tolist())
    ]
    url = pc.binary_join_element_wise(
        pa.scalar("https://www.nexmark.com/"), pc.replace_substring(path, " ", "/"), pa.array(tails, _TEXT), ""
    )
    columns = [
        pa.array(ids), pa.array(_recent(random, auctions, 30)), pa.array(_recent(random, people, 25)),
        pa.array(np.floor(10.0 ** (random.random(count) * 6) * 100).astype(np.int64)), chosen(_CHANNELS, channel), url,
        _stamps(times), phrases(random, _EXTRAS, 3, count),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMAS["bid"])


class Changes(Transactions):
    """Transactions over tables that `tables` gave: events go on, and rows of before change and go.

    Joined columns and times change too: a bid's auction, bidder and time, an auction's seller, category and end.
    """

    def __init__(self, tables: Mapping[str, pa.Table], seed: int = 1) -> None:
        super().__init__(tables, KEYS, [seed, 0xB1D])
        highest = {name: pc.max(table["id"]).as_py() for name, table in tables.items()}
        self._people = (highest["person"] or _FIRST_ID - 1) - _FIRST_ID + 1
        self._auctions = (highest["auction"] or _FIRST_ID - 1) - _FIRST_ID + 1
        self._bids = highest["bid"] or 0
        self._event = sum(table.num_rows for table in tables.values())
        self.steps = (
            [self._bid] * 10 + [self._auction] * 2 + [self._person] + [self._change_bid] * 4 + [self._drop_bid] * 3
            + [self._change_auction] * 2 + [self._drop_auction] + [self._change_person] + [self._drop_person]
        )  # fmt: skip

    def _next_time(self) -> Numbers:
        self._event += 1
        return _times(np.array([self._event]))

    # -- steps -----------------------------------------------------------------------------------------------

    def _person(self) -> None:
        self._people += 1
        self._put_all("person", _people(self._random, np.array([_FIRST_ID + self._people - 1]), self._next_time()))

    def _auction(self) -> None:
        self._auctions += 1
        ids, people = np.array([_FIRST_ID + self._auctions - 1]), np.array([max(1, self._people)])
        self._put_all("auction", _auctions(self._random, ids, self._next_time(), people))

    def _bid(self) -> None:
        self._bids += 1
        people, auctions = np.array([max(1, self._people)]), np.array([max(1, self._auctions)])
        self._put_all("bid", _bids(self._random, np.array([self._bids]), self._next_time(), people, auctions))

    def _change_bid(self) -> None:
        bid = self._any("bid")
        if bid is None:
            return
        match self._number(0, 3):
            case 0:
                bid["price"] = self._number(100, 100_000_000)
            case 1:
                bid["auction"] = _FIRST_ID + self._number(0, max(1, self._auctions))
                bid["bidder"] = _FIRST_ID + self._number(0, max(1, self._people))
            case _:
                bid["date_time"] += timedelta(milliseconds=self._number(-15_000, 15_000))
                bid["channel"] = _CHANNELS[self._number(0, len(_CHANNELS))]
        self._rows["bid"].put(bid)

    def _drop_bid(self) -> None:
        bid = self._any("bid")
        if bid is not None:
            self._rows["bid"].delete((bid["id"],))

    def _change_auction(self) -> None:
        auction = self._any("auction")
        if auction is not None:
            auction["seller"] = _FIRST_ID + self._number(0, max(1, self._people))
            auction["category"] = self._number(*_CATEGORIES)
            auction["expires"] += timedelta(milliseconds=self._number(-5_000, 5_000))
            self._rows["auction"].put(auction)

    def _drop_auction(self) -> None:
        auction = self._any("auction")
        if auction is not None:
            self._rows["auction"].delete((auction["id"],))

    def _change_person(self) -> None:
        """Moves, and is called otherwise."""
        person = self._any("person")
        if person is not None:
            person["city"], person["state"] = _PLACES[self._number(0, len(_PLACES))]
            person["name"] = phrases(self._random, _NAMES, 2, 1)[0].as_py()
            self._rows["person"].put(person)

    def _drop_person(self) -> None:
        person = self._any("person")
        if person is not None:
            self._rows["person"].delete((person["id"],))
