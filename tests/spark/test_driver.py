"""The pipeline's query: every epoch once and in order, the same batch again after a failure, an end between batches."""

from __future__ import annotations

import time

import pytest

from tidegate.errors import InvalidArgument

pytestmark = pytest.mark.slow


@pytest.fixture
def make(spark, bench, tmp_path):
    """Drivers on one history; whatever still runs at the end of the test is stopped."""
    from tidegate.spark.driver import Driver

    made = []

    def make(finish, fold="values", **options):
        driver = Driver(spark, bench.path, tmp_path / "work", f"spark_folds:{fold}", finish, wait_ms=200, **options)
        driver.work.mkdir(exist_ok=True)
        made.append(driver)
        return driver

    yield make
    for driver in made:
        if driver.is_active:
            driver.stop()


def eventually(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def values(batches):
    return sorted(value for batch in batches for report in batch.reports for value in report["values"])


def test_every_epoch_is_folded_once_and_in_order_and_stopping_ends_between_batches(make, bench):
    from tidegate.spark.driver import read_progress

    bench.db.sql("CREATE TOPIC audit SHARDS 4")
    done = []
    driver = make(done.append)
    driver.start()
    for epoch in range(1, 4):
        bench.send("audit", *range(10 * epoch, 10 * epoch + 5))
        driver.cuts.append(bench.cut())
        eventually(lambda epoch=epoch: done and done[-1].last == epoch)
        assert values(done[-1:]) == [*range(10 * epoch, 10 * epoch + 5)]
    driver.stop()
    assert driver.wait(30) and not driver.is_active
    assert [(batch.first, batch.last) for batch in done] == [(1, 1), (2, 2), (3, 3)]
    progress = read_progress(driver.work)
    assert progress.committed == progress.begun == (3, bench.cuts[-1].timestamp) and not progress.is_open


def test_a_batch_that_fails_says_why_in_one_line_and_is_run_again_with_the_same_epochs(make, bench, tmp_path):
    """Promise 7. Newer cuts do not change a batch that was begun."""
    from tidegate.spark.driver import BatchFailed, read_progress

    bench.db.sql("CREATE TOPIC audit SHARDS 2")
    told = tmp_path / "fail"
    told.touch()
    done = []
    driver = make(done.append, "fails_while_told", arguments={"fail": str(told)})
    bench.send("audit", 1, 2)
    driver.cuts.append(bench.cut(), bench.cut())
    driver.start()
    with pytest.raises(BatchFailed) as caught:
        driver.wait(60)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)
    assert "this share cannot be folded" in caught.value.why
    assert done == [] and read_progress(driver.work).is_open
    bench.send("audit", 3)
    driver.cuts.append(bench.cut())
    told.unlink()
    again = make(done.append, "fails_while_told", arguments={"fail": str(told)})
    again.start()
    eventually(lambda: done and done[-1].last == 3)
    assert [(batch.id, batch.first, batch.last) for batch in done] == [(0, 1, 2), (1, 3, 3)]
    assert values(done[:1]) == [1, 2] and values(done[1:]) == [3]


def test_stopping_while_a_job_runs_waits_for_it_and_hides_nothing_behind_a_stack_overflow(make, bench, tmp_path):
    """Spark's own `stop` during a job of `foreachBatch` ends in a StackOverflowError; see `driver.py`."""
    from tidegate.spark.driver import read_progress

    bench.db.sql("CREATE TOPIC audit")
    began = tmp_path / "began"
    done = []
    driver = make(done.append, "slow", arguments={"began": str(began), "seconds": 1.0})
    driver.cuts.append(bench.cut())
    driver.start()
    eventually(began.exists)
    driver.stop()
    assert driver.wait(30)
    assert [batch.last for batch in done] == [1]
    assert driver._query.exception() is None
    assert not read_progress(driver.work).is_open


def test_a_fold_that_cannot_be_loaded_is_refused_before_anything_starts(make):
    with pytest.raises(InvalidArgument, match="spark_folds:none"):
        make(print, "none")
