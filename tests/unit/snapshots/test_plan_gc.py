"""What may be deleted. GC facts of section 3: what is the newest, within retention or pinned stays; the rest goes."""

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.manifest import FileEntry, Manifest, ManifestName, Pointer
from tidegate.snapshots.plan_gc import Floor, Listed, NamedFiles, Plan, Retention, plan_gc


def when(second: int) -> Timestamp:
    return Timestamp.compose(1_700_000_000_000 + 1000 * second)


def path(epoch: int, table: int = 1, origin: str = "e") -> str:
    return f"tables/{table}/{origin}-{epoch}-{epoch}-s0-aa.parquet"


def plan(
    manifests: dict[int, set[str]],
    *,
    keep_s: int = 10**6,
    tables: dict[int, int] | None = None,
    pins: set[int] = frozenset(),  # type: ignore[assignment]
    orphans: dict[str, int] | None = None,
    strays: tuple[int, ...] = (),
    newest_s: int | None = None,
    floor: int = 0,
) -> Plan:
    """Checkpoint n was committed in second n and names the files given."""
    named = NamedFiles()
    for number, paths in manifests.items():
        files = [FileEntry(1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, each) for each in sorted(paths)]
        named.see(Manifest(number, number, when(number), 1, "", {1: tuple(files)}))
    last = max(manifests)
    history = [ManifestName(number, when(number), f"{number}") for number in manifests]
    listing = [Listed(each, 10**9) for each in sorted(set().union(*manifests.values()))]
    listing += [Listed(each, age) for each, age in (orphans or {}).items()]
    return plan_gc(
        listing=listing,
        history=history,
        strays=[ManifestName(number, when(number), f"stray {number}") for number in strays],
        named=named,
        pointer=Pointer(last, last, when(newest_s or last), 1, f"{last}"),
        pins=pins,
        retention=Retention(keep_s * 1000, {table: seconds * 1000 for table, seconds in (tables or {}).items()}),
        floor=Floor(floor),
        grace_ms=60_000,
    )


A, B, C, D = (path(each) for each in (1, 2, 3, 4))
HISTORY = {1: {A}, 2: {A, B}, 3: {C}, 4: {C, D}}


def deleted(plan: Plan) -> tuple[list[int], set[str]]:
    return [each.checkpoint for each in plan.manifests], set(plan.files)


def test_within_retention_nothing_goes() -> None:
    assert plan(HISTORY).empty


def test_the_newest_checkpoint_stays_without_any_retention() -> None:
    assert deleted(plan(HISTORY, keep_s=0)) == ([1, 2, 3], {A, B})


def test_a_checkpoint_stays_while_the_time_in_which_it_was_the_newest_is_kept() -> None:
    """Kept from second 2.5 on: what is read there is checkpoint 2."""
    assert deleted(plan(HISTORY, keep_s=1)) == ([1, 2], {A, B}), "second 3 is answered by checkpoint 3"
    assert deleted(plan(HISTORY, keep_s=2)) == ([1], set())


def test_the_window_ends_at_the_newest_checkpoint_also_when_nothing_changed() -> None:
    assert deleted(plan(HISTORY, keep_s=10, newest_s=13)) == ([1, 2], {A, B})


def test_a_pinned_checkpoint_stays_with_its_files() -> None:
    assert deleted(plan(HISTORY, keep_s=0, pins={1})) == ([2, 3], {B})
    assert deleted(plan(HISTORY, keep_s=0, pins={2})) == ([1, 3], set())
    assert deleted(plan(HISTORY, keep_s=0, pins={3})) == ([1, 2], {A, B})


def test_what_was_pinned_for_long_goes_as_soon_as_it_is_let_go() -> None:
    """Those that followed it are gone, so the next one is much younger, and may be within retention."""
    history = {1: {A}, 8: {C}, 9: {C, D}}
    assert deleted(plan(history, keep_s=3, floor=7, pins={1})) == ([], set())
    assert deleted(plan(history, keep_s=3, floor=7)) == ([1], {A})


def test_a_table_may_be_kept_for_shorter_or_longer() -> None:
    other = path(2, table=2)
    history = {1: {A, other}, 2: {C}, 3: {C}}
    assert deleted(plan(history, keep_s=100, tables={2: 0})) == ([], {other})
    assert deleted(plan(history, keep_s=0, tables={2: 100})) == ([], {A})
    shorter = plan(history, keep_s=100, tables={2: 0})
    assert (shorter.floor.of(1), shorter.floor.of(2)) == (1, 3)


def test_what_an_epoch_staged_goes_once_the_pointer_has_reached_it() -> None:
    """No commit accepts it any more, so neither a clock nor a grace time is needed."""
    late, early = path(4, table=9), path(5, table=9)
    assert deleted(plan(HISTORY, orphans={late: 0, early: 10**9})) == ([], {late})


def test_what_compaction_staged_goes_after_a_grace_time_and_behind_a_fence() -> None:
    old, new = path(1, origin="c"), path(2, origin="c")
    found = plan(HISTORY, orphans={old: 60_001, new: 60_000})
    assert (found.files, found.unfinished, found.fence) == ((), (old,), True)
    assert not plan(HISTORY, orphans={new: 60_000}).fence


def test_manifests_that_lost_go_once_their_number_is_taken() -> None:
    found = plan(HISTORY, strays=(3, 4, 5))
    assert [each.file for each in found.manifests] == ["stray 3", "stray 4"]


def test_files_of_others_are_not_touched() -> None:
    assert plan(HISTORY, orphans={"tables/1/notes.txt": 10**9, "tables/x/e-1-1-s0-aa.parquet": 10**9}).empty


def test_the_floor_never_goes_back() -> None:
    floor = Floor(5, {1: 9, 2: 3}).raised_to(Floor(7, {1: 6, 3: 2}))
    assert [floor.of(table) for table in (0, 1, 2, 3)] == [7, 9, 7, 5]
    assert floor.lowest == 5
    assert Floor(7).raised_to(Floor(5, {1: 6})) == Floor(7)
