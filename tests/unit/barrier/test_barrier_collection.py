"""Handing out, collecting reports, committing checkpoints. Seed 001; checkpoints-and-views sections 2.4, 2.5 and 8."""

import pytest
from barrier_rig import (
    CHANNELS,
    OWNER,
    begins,
    commits,
    cut,
    discarded,
    finish,
    hand_outs,
    make,
    of,
    report,
)

from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import Pointer, Span
from tidegate.barrier.work import Commit, CommitOutcome, ReadPointer, Refuse, StepDown, Verdict, share_out
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken

# -- handing out ---------------------------------------------------------------------------------------------------


def test_a_recorded_epoch_is_handed_to_every_worker_with_its_share():
    epochs = make("a", "b")
    effects = epochs.record(cut(1), 0)
    assert hand_outs(effects) == {"a": (1, 1), "b": (1, 1)}
    assert {effect.worker: effect.channels for effect in effects} == {"a": ("d0", "d2"), "b": ("d1",)}


def test_the_one_worker_of_the_embedded_shape_has_all_channels():
    epochs = make("only")
    assert epochs.workers["only"].channels == CHANNELS


def test_shares_are_a_partition_of_the_channels():
    for workers in (1, 2, 3, 4, 7):
        shares = share_out(CHANNELS, [f"w{at}" for at in range(workers)])
        assert sorted(name for share in shares.values() for name in share) == list(CHANNELS)
        assert len(shares) == workers


def test_a_hand_out_names_the_cuts_between_which_to_read():
    epochs = make("a", cuts=1)
    effects = finish(epochs, "a")
    epochs.committed(1, 0)
    (out,) = epochs.record(cut(2), 0)
    assert (out.after, out.upto) == (cut(1), cut(2))
    assert commits(effects)[0].cut == cut(1)


def test_who_falls_behind_takes_several_epochs_at_once():
    """Design: if Spark falls behind, one micro-batch spans several epochs, and nothing else changes."""
    epochs = make("a", cuts=4)
    assert epochs.workers["a"].handed == (1, 1)
    assert hand_outs(finish(epochs, "a")) == {"a": (2, 4)}


def test_all_workers_take_the_same_spans_however_slow_they_are():
    epochs = make("fast", "slow", cuts=1)
    finish(epochs, "fast")
    epochs.record(cut(2), 0)
    epochs.record(cut(3), 0)
    finish(epochs, "fast")
    assert hand_outs(finish(epochs, "slow"))["slow"] == (2, 2)


def test_nobody_runs_further_ahead_of_the_last_checkpoint_than_allowed():
    """A bound on everything: what is staged is bounded by the slowest worker."""
    epochs = make("fast", "slow", cuts=1, ahead_max=2)
    finish(epochs, "fast")
    epochs.record(cut(2), 0)
    finish(epochs, "fast")
    assert epochs.record(cut(3), 0) == ()
    assert epochs.record(cut(4), 0) == ()
    assert hand_outs(finish(epochs, "slow")) == {"fast": (3, 4), "slow": (2, 2)}  # epoch 1 is being committed


def test_a_span_is_no_longer_than_allowed():
    epochs = make("a", cuts=9, span_epochs_max=3)
    assert hand_outs(finish(epochs, "a")) == {"a": (2, 4)}


def test_a_span_ends_at_a_checkpoint_where_there_is_one():
    epochs = make(cuts=0)
    for epoch, checkpoint in enumerate((False, True, False), 1):
        epochs.record(cut(epoch, checkpoint=checkpoint), 0)
    assert hand_outs(epochs.register("a", 11, 0)) == {"a": (1, 2)}


def test_a_hand_out_that_was_lost_is_said_again():
    epochs = make("a", cuts=1)
    (out,) = epochs.work_of("a", 11, epochs.generation)
    assert out.span == (1, 1)
    finish(epochs, "a")
    assert epochs.work_of("a", 11, epochs.generation) == ()


def test_who_missed_that_shares_have_changed_is_told_where_to_begin():
    """Found by simulation: the one message that said so was lost, and the worker waited for ever."""
    epochs = make("a", cuts=1)
    before = epochs.generation
    epochs.register("b", 12, 0)
    (begin,) = epochs.work_of("a", 11, before)
    assert (begin.generation, begin.channels, begin.after) == (epochs.generation, ("d0", "d2"), 0)


def test_a_cut_that_is_told_twice_changes_nothing():
    epochs = make("a", cuts=2)
    assert epochs.record(cut(2), 0) == ()
    assert epochs.uncommitted == 2


def test_a_cut_that_leaves_a_gap_is_a_defect():
    """Section 11: collector contiguity."""
    with pytest.raises(InvariantBroken):
        make("a", cuts=1).record(cut(3), 0)


# -- reports -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_commits_when_every_worker_has_reported():
    """Section 0, C6: the coordinator commits when all nodes have acknowledged."""
    epochs = make("a", "b", cuts=1)
    assert commits(finish(epochs, "a")) == []
    (commit,) = commits(finish(epochs, "b"))
    assert commit.span == (1, 1)
    assert commit.files == ("a.11.1-1", "b.12.1-1")
    assert commit.pointer == Pointer(1, 1, Timestamp(100), OWNER, "000000000001-000010")


def test_with_no_worker_nothing_is_committed():
    epochs = make(cuts=3)
    assert epochs.committing is None
    assert epochs.uncommitted == 3


def test_a_repeated_report_changes_nothing_and_keeps_its_files():
    """Section 2.4: a duplicate acknowledgement. Here it is not a defect: networks repeat."""
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    again = epochs.report(report(epochs, "a", span=(1, 1)), 0)
    assert (again.verdict, again.discard, again.effects) == (Verdict.REPEATED, (), ())


def test_a_batch_that_was_run_twice_is_taken_once_and_its_new_files_discarded():
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    again = epochs.report(report(epochs, "a", span=(1, 1), files=("other",)), 0)
    assert (again.verdict, again.discard) == (Verdict.REPEATED, ("other",))
    (commit,) = commits(finish(epochs, "b"))
    assert "other" not in commit.files


def test_a_report_that_comes_after_its_commit_is_told_so():
    """Issue: running a batch again after a crash at any point gives the same result."""
    epochs = make("a", cuts=1)
    finish(epochs, "a")
    epochs.committed(1, 0)
    same = epochs.report(report(epochs, "a", span=(1, 1)), 0)
    assert (same.verdict, same.discard) == (Verdict.COMMITTED, ())
    other = epochs.report(report(epochs, "a", span=(1, 1), files=("other",)), 0)
    assert (other.verdict, other.discard) == (Verdict.COMMITTED, ("other",))


def test_a_late_report_of_files_in_doubt_discards_nothing():
    """They may be part of an older checkpoint; only garbage collection, which reads manifests, can tell."""
    epochs = make("a", cuts=2)
    finish(epochs, "a")
    epochs.committed(1, 0)
    finish(epochs, "a")
    epochs.committed(2, 0)
    assert epochs.report(report(epochs, "a", span=(1, 1)), 0).discard == ()


def test_a_report_of_an_old_term_changes_nothing():
    """Section 8: late acks from an old term are ignored."""
    epochs = make("a", cuts=1)
    late = report(epochs, "a")
    epochs.register("a", 20, 0)
    answer = epochs.report(late, 0)
    assert (answer.verdict, answer.effects, answer.discard) == (Verdict.OLD_TERM, (), ())
    assert answer.verdict.must_stop
    assert epochs.committing is None


def test_a_report_of_a_worker_that_was_given_up_changes_nothing():
    epochs = make("a", cuts=1)
    late = report(epochs, "a")
    epochs.lost("a", 11, 0)
    assert epochs.report(late, 0).verdict is Verdict.OLD_TERM


def test_a_report_of_a_stranger_changes_nothing():
    """Section 2.4: unknown ack. The worker learns that it has to register."""
    epochs = make("a", cuts=1)
    stranger = epochs.report(report(epochs, "a").__class__("x", 99, 1, Span(1, 1), ("f",)), 0)
    assert stranger.verdict is Verdict.UNKNOWN_WORKER
    assert stranger.verdict.must_register
    assert epochs.report(report(epochs, "a", term=99), 0).verdict is Verdict.UNKNOWN_WORKER


@pytest.mark.parametrize("span", [(1, 2), (2, 2), (2, 3)])
def test_a_report_of_a_span_that_was_not_handed_out_changes_nothing(span):
    epochs = make("a", cuts=3)
    answer = epochs.report(report(epochs, "a", span=span, files=("f",)), 0)
    assert (answer.verdict, answer.discard) == (Verdict.NOT_HANDED_OUT, ("f",))
    assert epochs.workers["a"].handed == (1, 1)


def test_a_report_of_old_shares_changes_nothing():
    epochs = make("a", cuts=1)
    late = report(epochs, "a")
    epochs.register("b", 12, 0)
    answer = epochs.report(late, 0)
    assert (answer.verdict, answer.discard) == (Verdict.OLD_SHARES, late.files)


def test_epochs_without_a_checkpoint_are_staged_and_committed_with_the_next_one():
    """Section 0: a checkpoint covers all non-checkpoint epochs since the last one."""
    epochs = make("a")
    epochs.record(cut(1, checkpoint=False), 0)
    assert commits(finish(epochs, "a")) == []
    epochs.record(cut(2), 0)
    (commit,) = commits(finish(epochs, "a"))
    assert commit.span == (1, 2)
    assert commit.files == ("a.11.1-1", "a.11.2-2")


# -- commits -------------------------------------------------------------------------------------------------------


def test_one_commit_at_a_time_and_in_order():
    """Section 2.5: exactly one commit task at a time; takes collected barriers in order."""
    epochs = make("a", cuts=1)
    assert len(commits(finish(epochs, "a"))) == 1
    epochs.record(cut(2), 0)
    assert commits(finish(epochs, "a")) == []
    (second,) = commits(epochs.committed(1, 0))
    assert (second.pointer.checkpoint, second.pointer.previous, second.span) == (2, 1, (2, 2))


def test_what_is_committed_is_told_twice_without_harm():
    epochs = make("a", cuts=1)
    finish(epochs, "a")
    epochs.committed(1, 5)
    assert epochs.committed(1, 9) == ()
    assert epochs.committed_ms == 5


def test_a_commit_that_nobody_asked_for_is_a_defect():
    with pytest.raises(InvariantBroken):
        make("a").committed(1, 0)


def test_a_commit_that_is_absent_is_made_again_as_it_was():
    epochs = make("a", cuts=1)
    (commit,) = commits(finish(epochs, "a"))
    assert epochs.commit_failed(1, CommitOutcome.ABSENT) == (commit,)


@pytest.mark.parametrize("outcome", [CommitOutcome.UNKNOWN, CommitOutcome.REFUSED])
def test_a_commit_of_unknown_outcome_is_looked_for(outcome):
    epochs = make("a", cuts=1)
    (commit,) = commits(finish(epochs, "a"))
    assert epochs.commit_failed(1, outcome) == (ReadPointer(1),)
    assert epochs.pointer_is(Pointer().claimed_by(OWNER), 0) == (commit,)
    epochs.pointer_is(commit.pointer, 0)
    assert epochs.pointer == commit.pointer
    assert epochs.committing is None


def test_an_owner_that_was_replaced_steps_down_and_does_nothing_more():
    epochs = make("a", cuts=1)
    (commit,) = commits(finish(epochs, "a"))
    newer = Pointer().claimed_by(77)
    assert epochs.pointer_is(newer, 0) == (StepDown(77),)
    assert epochs.commit_failed(1, CommitOutcome.ABSENT) == ()
    assert epochs.record(cut(2), 0) == ()
    assert epochs.report(report(epochs, "a", span=(2, 2)), 0).verdict is Verdict.FENCED
    assert epochs.register("a", 99, 0)[0].verdict.must_register
    assert commit.pointer != epochs.pointer


def test_a_pointer_that_nobody_can_have_written_is_a_defect():
    epochs = make("a", cuts=1)
    with pytest.raises(InvariantBroken):
        epochs.pointer_is(Pointer(5, 9, Timestamp(900), OWNER, "x"), 0)


def test_files_are_arranged_anew_by_a_checkpoint_of_the_same_epoch():
    epochs = make("a", cuts=1)
    assert epochs.rewrite(0) is None  # there is nothing yet
    finish(epochs, "a")
    assert epochs.rewrite(0) is None  # a commit is under way: join that one
    epochs.committed(1, 0)
    commit = epochs.rewrite(0)
    assert (commit.pointer.checkpoint, commit.pointer.epoch, commit.pointer.timestamp) == (2, 1, 100)
    assert (commit.span, commit.files) == (None, ())
    epochs.committed(2, 0)
    epochs.record(cut(2), 0)
    assert commits(finish(epochs, "a"))[0].span == (2, 2)


# -- death ---------------------------------------------------------------------------------------------------------


def test_a_worker_died_before_its_report_so_nothing_is_committed():
    """Section 8, worker_crash_no_early_commit: A acknowledged, B died before it did."""
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    epochs.lost("b", 12, 0)
    epochs.record(cut(2), 0)
    assert epochs.committing is None
    assert epochs.pointer.epoch == 0


def test_the_next_term_does_it_again_and_what_others_reported_is_kept():
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    epochs.lost("b", 12, 0)
    effects = epochs.register("b", 20, 0)
    assert begins(effects)["b"].after == 0
    assert hand_outs(effects) == {"b": (1, 1)}
    (commit,) = commits(finish(epochs, "b"))
    assert commit.files == ("a.11.1-1", "b.20.1-1")


def test_what_a_dead_worker_had_reported_is_discarded_and_done_again():
    """Section 8: reset state, clear uncommitted."""
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    assert discarded(epochs.lost("a", 11, 0)) == ["a.11.1-1"]
    assert commits(finish(epochs, "b")) == []
    epochs.register("a", 20, 0)
    (commit,) = commits(finish(epochs, "a"))
    assert commit.files == ("a.20.1-1", "b.12.1-1")


def test_a_commit_under_way_does_not_need_its_workers_any_more():
    epochs = make("a", cuts=1)
    (commit,) = commits(finish(epochs, "a"))
    assert discarded(epochs.lost("a", 11, 0)) == []
    assert epochs.commit_failed(1, CommitOutcome.ABSENT) == (commit,)
    assert begins(epochs.register("a", 20, 0))["a"].after == 1  # behind what is being committed
    epochs.committed(1, 0)
    assert epochs.pointer.epoch == 1


def test_news_of_the_death_of_an_older_term_is_no_news():
    epochs = make("a", cuts=1)
    epochs.register("a", 20, 0)
    assert epochs.lost("a", 11, 0) == ()
    assert epochs.workers["a"].is_alive


def test_registering_with_an_old_term_is_refused():
    epochs = make("a")
    epochs.register("a", 20, 0)
    for term, verdict in ((15, Verdict.OLD_TERM), (OWNER, Verdict.OLD_TERM)):
        (refusal,) = epochs.register("a", term, 0)
        assert isinstance(refusal, Refuse)
        assert refusal.verdict is verdict
    assert epochs.register("new", OWNER, 0)[0].verdict is Verdict.UNKNOWN_WORKER  # a term from before this owner
    assert epochs.workers["a"].term == 20
    assert "new" not in epochs.workers


def test_registering_again_because_no_answer_came_is_answered_again():
    epochs = make("a", cuts=1)
    (begin,) = epochs.register("a", 11, 0)
    assert (begin.after, begin.redo) == (0, False)
    finish(epochs, "a")
    assert epochs.register("a", 11, 0) == ()  # late: it has begun long ago


def test_when_shares_change_everybody_begins_behind_the_last_commit():
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a")
    effects = epochs.remove("b", 0)
    assert discarded(effects) == ["a.11.1-1"]
    assert begins(effects)["a"].channels == CHANNELS
    assert hand_outs(effects) == {"a": (1, 1)}


def test_shares_do_not_change_while_a_commit_is_under_way():
    epochs = make("a", cuts=2)
    finish(epochs, "a")
    assert begins(epochs.register("b", 12, 0)) == {}
    assert epochs.work_of("b", 12, 0) == ()
    effects = epochs.committed(1, 0)
    assert {name: begin.after for name, begin in begins(effects).items()} == {"a": 1, "b": 1}
    assert hand_outs(effects) == {"a": (2, 2), "b": (2, 2)}


def test_other_channels_are_shared_out_anew():
    epochs = make("a", cuts=1)
    assert epochs.set_channels(CHANNELS, 0) == ()
    effects = epochs.set_channels(["d0", "new"], 0)
    assert begins(effects)["a"].channels == ("d0", "new")


# -- a batch that the worker is bound to ---------------------------------------------------------------------------


def test_a_batch_in_the_offset_log_is_handed_out_as_it_is():
    """Spark runs exactly the batch again that its offset log names."""
    epochs = make(cuts=5)
    effects = epochs.register("a", 11, 0, redo=Span(1, 3))
    assert begins(effects)["a"].redo
    assert hand_outs(effects) == {"a": (1, 3)}
    (commit,) = commits(finish(epochs, "a"))
    assert commit.span == (1, 3)


@pytest.mark.parametrize("redo", [(1, 2), (4, 5), (2, 4), (3, 9)])
def test_a_batch_that_is_not_next_is_thrown_away(redo):
    """Committed already, begun behind something that was lost, half committed, or beyond what was ever recorded."""
    pointer = Pointer(1, 2, Timestamp(200), OWNER, "m")
    epochs = Epochs(OWNER, pointer, [cut(epoch) for epoch in range(2, 6)], channels=CHANNELS)
    effects = epochs.register("a", 11, 0, redo=Span(*redo))
    assert not begins(effects)["a"].redo
    assert hand_outs(effects) == {"a": (3, 5)}


def test_workers_bound_to_different_batches_meet_at_the_end_of_the_longer_one():
    epochs = make("a", "b", cuts=5)
    epochs.lost("a", 11, 0)
    epochs.lost("b", 12, 0)
    epochs.register("a", 21, 0, redo=Span(1, 3))
    epochs.register("b", 22, 0, redo=Span(1, 5))
    assert hand_outs(finish(epochs, "a")) == {"a": (4, 5)}
    assert commits(finish(epochs, "a")) == []
    (commit,) = commits(finish(epochs, "b"))
    assert commit.span == (1, 5)


# -- recovery ------------------------------------------------------------------------------------------------------


def test_a_new_owner_goes_on_behind_the_pointer_with_the_cuts_that_were_recorded():
    """Section 8: reload committed epochs; epochs behind are taken again from the log."""
    pointer = Pointer(4, 2, Timestamp(200), 3, "m").claimed_by(OWNER)
    epochs = Epochs(OWNER, pointer, [cut(epoch) for epoch in range(1, 5)], channels=CHANNELS)
    (_, out) = epochs.register("a", 11, 0)
    assert (out.span, out.after, out.upto) == ((3, 4), cut(2), cut(4))
    (commit,) = commits(finish(epochs, "a"))
    assert (commit.pointer.checkpoint, commit.pointer.previous) == (5, 4)


def test_an_owner_without_a_claim_is_a_defect():
    with pytest.raises(InvariantBroken, match="claimed by term 3"):
        Epochs(OWNER, Pointer(1, 0, Timestamp(0), 3, "m"), [], channels=CHANNELS)


@pytest.mark.parametrize("there", [(), (1, 3), (2, 4), (3, 4)])
def test_a_missing_cut_is_a_defect(there):
    pointer = Pointer(1, 2, Timestamp(200), OWNER, "m")
    with pytest.raises(InvariantBroken):
        Epochs(OWNER, pointer, map(cut, there), channels=CHANNELS)


def test_a_pointer_beside_the_cut_of_its_epoch_is_a_defect():
    with pytest.raises(InvariantBroken):
        Epochs(OWNER, Pointer(1, 2, Timestamp(201), OWNER, "m"), [cut(2)], channels=CHANNELS)


# -- pause, and what garbage collection asks -----------------------------------------------------------------------


def test_a_paused_pipeline_finishes_what_is_under_way_and_gets_nothing_new():
    epochs = make("a", cuts=1)
    assert epochs.pause()
    assert not epochs.pause()
    (commit,) = commits(finish(epochs, "a"))
    epochs.committed(commit.pointer.checkpoint, 0)
    assert epochs.record(cut(2), 0) == ()
    assert epochs.record(cut(3), 0) == ()
    assert hand_outs(epochs.resume(0)) == {"a": (2, 3)}


def test_garbage_collection_spares_what_may_still_be_committed():
    epochs = make("a", cuts=2)
    assert epochs.may_become_visible(11, 1)
    assert epochs.may_become_visible(99, 1)  # of a life that has not registered yet
    assert not epochs.may_become_visible(OWNER, 1)  # from before this owner
    finish(epochs, "a")
    assert epochs.may_become_visible(11, 1)  # it is being committed
    epochs.committed(1, 0)
    assert not epochs.may_become_visible(11, 1)  # its epoch is committed without it
    assert epochs.may_become_visible(11, 2)


def test_garbage_collection_spares_what_an_older_life_of_a_worker_wrote():
    """Found by simulation: that life had gone over to a new owner, which committed what the old owner then removed."""
    epochs = make("a", cuts=1)
    epochs.register("a", 20, 0)
    assert epochs.may_become_visible(11, 1)


def test_memory_does_not_grow_with_the_number_of_epochs():
    """A bound on everything: what is committed is forgotten."""
    epochs = make("a")
    for epoch in range(1, 500):
        epochs.record(cut(epoch), 0)
        finish(epochs, "a")
        epochs.committed(epoch, 0)
    assert len(epochs._cuts) == 1
    assert epochs._targets == []
    assert len(epochs._recorded_ms) <= 1
    assert epochs.workers["a"].reports == []


def test_only_one_commit_is_ever_asked_for_at_a_time():
    epochs = make("a", "b", cuts=3)
    asked = [*of(Commit, finish(epochs, "a")), *of(Commit, finish(epochs, "b"))]
    asked += [*of(Commit, finish(epochs, "a")), *of(Commit, finish(epochs, "b"))]
    assert len(asked) == 1
