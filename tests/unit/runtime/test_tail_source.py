"""`TailSource`: while a writer lives, readers elsewhere learn from what it published, and never from the files."""

from __future__ import annotations

from collections.abc import Callable

from helpers import MemoryTail, Rig, commit_all, drain, tick
from tidegate.ports.tail import TailSlot
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.file_cursor import Limit


class Overtaken(MemoryTail):
    """A tail whose writer changes in the middle of a reader's look at it: the newer one removes the older's slot."""

    def __init__(self, inner: MemoryTail, take_over: Callable[[], None]) -> None:
        self._inner = inner
        self._take_over: Callable[[], None] | None = take_over

    def current_term(self) -> int:
        return self._inner.current_term()

    def slot(self, term: int) -> TailSlot | None:
        if self._take_over is not None:
            take_over, self._take_over = self._take_over, None
            take_over()
        return self._inner.slot(term) if term == self._inner.current_term() else None

    def close(self) -> None:
        self._inner.close()


def unpublished(rig: Rig) -> None:
    """A new writer takes over and stops between writing an append and acknowledging it."""
    writer = rig.writer()
    writer.append_async("v", b"not acknowledged")
    commit = writer.next_commit()
    assert commit is not None
    writer.write(commit)


def test_a_slot_that_is_gone_because_a_newer_writer_took_over_is_not_replaced_by_a_look_at_the_files(rig: Rig) -> None:
    """The files hold more than the new writer has published."""
    first = rig.writer()
    first.append_async("v", b"kept")
    commit_all(first)
    tail = Overtaken(rig.tail, lambda: unpublished(rig))
    limit, _ = TailSource(rig.channel, tail, is_written=lambda: True).limit()
    published = TailSource(rig.channel, rig.tail, is_written=lambda: True).limit()[0]
    assert limit == published
    assert limit != rig.channel.end_of_log()


def test_a_writer_that_appears_while_the_files_are_searched_decides_where_they_end(rig: Rig) -> None:
    """Nobody had written since the machine started; while a reader looks for the end, a writer opens the log."""
    first = rig.writer()
    first.append_async("v", b"kept")
    commit_all(first)
    tick(first)
    rig.tail = MemoryTail()
    channel, search, searches = rig.channel, rig.channel.end_of_log, []

    def end_of_log() -> Limit | None:
        if not searches:
            unpublished(rig)
        searches.append(search())
        return searches[-1]

    channel.end_of_log = end_of_log  # type: ignore[method-assign]
    source = TailSource(channel, rig.tail, is_written=lambda: True)
    limit, _ = source.limit()
    assert searches, "it did look at the files"
    assert limit != searches[0]
    with ChannelReader(channel, source) as reader:
        assert [each.body for each in drain(reader)] == [b"kept"]


def test_when_terms_change_without_end_a_reader_waits_instead_of_guessing(rig: Rig) -> None:
    first = rig.writer()
    commit_all(first)

    class Restless(MemoryTail):
        terms = 0

        def current_term(self) -> int:
            self.terms += 1
            return self.terms

        def slot(self, term: int) -> TailSlot | None:
            return None

    assert TailSource(rig.channel, Restless()).limit() == (None, 0)
