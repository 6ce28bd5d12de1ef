"""Laws of the catalog: a snapshot and the records after it equal all records; ids never come back."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import Change, SubscriptionCreated, SubscriptionDropped, TopicCreated, TopicDropped
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument

names = st.sampled_from(["a", "b", "c"])
starts = st.sampled_from(["earliest", "latest", Timestamp(7)])
steps = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 3)),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("subscribe"), names, names, starts, st.none() | names),
    st.tuples(st.just("unsubscribe"), names, names),
)


def plan(catalog: Catalog, step: tuple[Any, ...]) -> bytes | None:
    try:
        match step:
            case ("create", name, shards):
                return catalog.plan_create_topic(name, shards=shards, options={"n": shards})
            case ("drop", name):
                return catalog.plan_drop_topic(name)
            case ("subscribe", topic, name, start, dead):
                redeliveries = None if dead is None else 3
                return catalog.plan_create_subscription(
                    topic, name, start=start, max_redeliveries=redeliveries, dead_letter_topic=dead
                )
            case ("unsubscribe", topic, name):
                return catalog.plan_drop_subscription(topic, name)
    except InvalidArgument:
        return None
    raise AssertionError(step)


def state(catalog: Catalog) -> tuple[Any, ...]:
    return (catalog.topics(), catalog.subscriptions(), catalog.version, catalog.changed, catalog.snapshot())


def written(catalog: Catalog, groups: list[list[tuple[Any, ...]]]) -> list[tuple[bytes, Timestamp, Change | None]]:
    """Play the steps. Those of one group are planned side by side, so that later ones may lose the race."""
    log: list[tuple[bytes, Timestamp, Change | None]] = []
    for group in groups:
        for record in [plan(catalog, step) for step in group]:
            if record is not None:
                when = Timestamp(len(log) + 1)
                log.append((record, when, catalog.apply(record, when)))
    return log


histories = st.lists(st.lists(steps, min_size=1, max_size=3), max_size=25)


@given(histories, st.data())
@settings(max_examples=200, deadline=None)
def test_a_snapshot_and_the_records_after_it_equal_all_records(
    groups: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    live = Catalog()
    log = written(live, groups)
    cut = data.draw(st.integers(0, len(log)))
    replayed = Catalog()
    for record, when, change in log[:cut]:
        assert replayed.apply(record, when) == change
    replayed = Catalog.restore(replayed.snapshot())
    for record, when, change in log[cut:]:
        assert replayed.apply(record, when) == change
    assert state(replayed) == state(live)


@given(histories)
@settings(max_examples=200, deadline=None)
def test_changes_tell_the_whole_story_and_ids_never_come_back(groups: list[list[tuple[Any, ...]]]) -> None:
    """A twin that follows only the changes ends where the catalog ends."""
    catalog = Catalog()
    topics: dict[str, Any] = {}
    subscriptions: dict[tuple[str, str], Any] = {}
    ids = [0]
    for _, _, change in written(catalog, groups):
        match change:
            case TopicCreated(topic):
                assert topic.id > ids[-1] and topic.name not in topics
                ids.append(topic.id)
                topics[topic.name] = topic
            case TopicDropped(topic, dropped):
                assert topics.pop(topic.name) == topic
                gone = {(each.topic, each.name) for each in dropped}
                assert gone == {key for key in subscriptions if key[0] == topic.name}
                for key in gone:
                    del subscriptions[key]
            case SubscriptionCreated(made):
                assert (made.topic, made.name) not in subscriptions
                subscriptions[made.topic, made.name] = made
            case SubscriptionDropped(made):
                assert subscriptions.pop((made.topic, made.name)) == made
        for each in catalog.subscriptions():
            assert catalog.topic(each.topic).id == each.topic_id
            assert each.dead_letter_topic is None or catalog.topic(each.dead_letter_topic)
    assert catalog.topics() == tuple(topics[name] for name in sorted(topics))
    assert catalog.subscriptions() == tuple(subscriptions[key] for key in sorted(subscriptions))
