"""Which files are merged: only neighbours, one job per shard, and few files in the end."""

from dataclasses import replace

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.manifest import BASE, FileEntry, Manifest
from tidegate.snapshots.plan_compaction import CompactionJob, Tiers, plan_compaction

TIERS = Tiers(fan=4, base_fraction=0.25, large_rows=1000, file_bytes=100_000)


def entry(
    first: int, last: int | None = None, *, level: int = 0, rows: int = 10, table: int = 1, shard: int = 0
) -> FileEntry:
    last = first if last is None else last
    path = f"tables/{table}/e-{first}-{last}-s{shard}-{level + 1}.parquet"
    return FileEntry(table, shard, level, first, last, 1, rows, rows * 20, first, last, 0, path)


def manifest(*files: FileEntry) -> Manifest:
    tables: dict[int, tuple[FileEntry, ...]] = {}
    for each in files:
        tables[each.table] = (*tables.get(each.table, ()), each)
    return Manifest(1, 9, Timestamp(9), 1, "", tables)


def plan(
    *files: FileEntry, keyless: tuple[int, ...] = (), busy: tuple[tuple[int, int], ...] = ()
) -> list[CompactionJob]:
    return plan_compaction(manifest(*files), keyless, tiers=TIERS, busy=busy)


BIG = entry(0, 1, level=BASE, rows=1_000_000)


def test_few_layers_are_left_alone() -> None:
    assert plan(BIG, *(entry(each) for each in range(2, 5))) == []


def test_enough_neighbours_of_a_level_become_one_of_the_next() -> None:
    layers = [entry(each) for each in range(2, 6)]
    (job,) = plan(BIG, *layers)
    assert (job.inputs, job.level, job.first, job.last) == (tuple(layers), 1, 2, 5)


def test_only_neighbours_are_merged() -> None:
    """What lies between two files would otherwise be older than one and younger than the other."""
    split = [entry(2), entry(3), entry(4, 5, level=1), entry(6), entry(7)]
    assert plan(BIG, *split) == []


def test_layers_that_are_a_part_of_the_base_become_a_base_with_it() -> None:
    base = entry(0, 1, level=BASE, rows=4000)
    layer = entry(2, rows=1000)
    (job,) = plan(base, layer)
    assert (job.inputs, job.level) == ((base, layer), BASE)
    assert plan(replace(base, rows=4001), layer) == []


def test_small_layers_wait_for_company_before_the_base_is_rewritten() -> None:
    base = entry(0, 1, level=BASE, rows=10)
    layers = [entry(each) for each in range(2, 6)]
    assert plan(base, *layers[:3]) == []
    (job,) = plan(base, *layers)
    assert (job.inputs, job.level) == ((base, *layers), BASE)


def test_the_first_layers_become_the_base() -> None:
    (job,) = plan(*(entry(each) for each in range(4)))
    assert job.level == BASE


def test_a_shard_has_one_job_at_a_time_and_none_while_it_is_busy() -> None:
    files = [entry(each, table=table, shard=shard) for table in (1, 2) for shard in (0, 1) for each in range(8)]
    assert {(job.table, job.shard) for job in plan(*files)} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert len(plan(*files)) == 4
    assert {(job.table, job.shard) for job in plan(*files, busy=((1, 1), (2, 0)))} == {(1, 0), (2, 1)}


def test_files_of_a_table_without_a_key_are_joined_until_they_are_large() -> None:
    small = [entry(each) for each in range(4)]
    (job,) = plan(*small, keyless=(1,))
    assert (job.inputs, job.level) == (tuple(small), 1)
    assert plan(*(entry(each, rows=2500) for each in range(9)), keyless=(1,)) == []


def test_over_thousands_of_epochs_files_stay_few_and_rows_are_seldom_rewritten() -> None:
    """The number of live files stays bounded; write amplification grows with the logarithm."""
    for keyless in ((), (1,)):
        tiers = Tiers(fan=8, large_rows=100_000)
        current = manifest(*(() if keyless else (entry(0, level=BASE, rows=1_000_000),)))
        most = written = 0
        for epoch in range(1, 3001):
            new = entry(epoch, rows=100)
            current = current.with_epoch(
                [new], [], [], after=epoch - 1, epoch=epoch, timestamp=Timestamp(epoch), term=1
            )
            for job in plan_compaction(current, keyless, tiers=tiers):
                output = replace(entry(job.first, job.last, level=job.level, rows=job.rows), path=f"tables/1/{epoch}")
                current = current.with_replaced(job.inputs, [output])
                written += job.rows
            most = max(most, len(current.files(1)))
        assert most <= 4 * 8 + 2
        assert written <= (4 * 3000 * 100) + (1_300_000 if not keyless else 0)
        assert sum(each.rows for each in current.files(1)) == 3000 * 100 + (0 if keyless else 1_000_000)
