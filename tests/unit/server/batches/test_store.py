"""Files and batches in a state directory: whose they are, how much there may be, and what is left of them."""

from __future__ import annotations

import fcntl
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.server import ServerConfig
from jaxserve.errors import (
    ConfigError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaError,
    StorageFullError,
)
from server.batches import database as database_module
from server.batches.database import UNFINISHED, Database
from server.batches.disk import Disk
from server.batches.records import (
    WINDOW_SECONDS,
    Batch,
    BatchStatus,
    Counts,
    NewBatch,
    Problem,
    Purpose,
    Results,
    Spent,
    StoredFile,
)
from server.batches.store import Quotas, Store

DAY = 86400
QUOTAS = Quotas(stored_bytes=1000, unfinished_batches=3, lifetime=30 * DAY)
NOTHING = Results(Counts(), Spent())


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_800_000_000.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(root: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(Store(root, QUOTAS, clock.now)) as store:
        yield store


def put(store: Store, content: bytes = b"{}\n", owner: str = "acme", lifetime: int | None = None) -> StoredFile:
    with closing(store.upload(owner, len(content))) as upload:
        upload.write(content)
        return upload.keep("in.jsonl", lifetime=lifetime)


def new_batch(store: Store, owner: str = "acme", file_id: str | None = None) -> Batch:
    return store.create_batch(owner, wanted(file_id or put(store, owner=owner).id))


def wanted(file_id: str) -> NewBatch:
    return NewBatch(endpoint="/v1/completions", input_file_id=file_id, model="pico")


def content(store: Store, file_id: str, owner: str = "acme") -> bytes:
    _, opened = store.open_file(owner, file_id)
    with opened:
        return opened.read()


def on_disk(root: Path) -> set[str]:
    return {path.name for path in (root / "files").iterdir()}


# Files.


def test_a_file_comes_back_as_it_was_also_to_another_process(store: Store, root: Path, clock: VirtualClock) -> None:
    given = b"".join(b"%d\n" % number for number in range(100))
    with closing(store.upload("acme")) as upload:
        for start in range(0, len(given), 7):
            upload.write(given[start : start + 7])
        kept = upload.keep("night.jsonl", Purpose.BATCH, lifetime=3600)
    now = int(clock.now())
    assert kept == StoredFile(kept.id, "acme", Purpose.BATCH, "night.jsonl", len(given), now, now + 3600)
    with closing(Store(root, QUOTAS, clock.now)) as other:
        assert other.file("acme", kept.id) == kept
        assert content(other, kept.id) == given


def test_an_upload_that_is_not_kept_leaves_nothing(store: Store, root: Path) -> None:
    with closing(store.upload("acme")) as upload:
        upload.write(b"x" * 100)
        assert len(on_disk(root)) == 1
    assert on_disk(root) == set()
    assert store.files("acme", limit=10) == ([], False)


def test_what_is_anothers_does_not_exist(store: Store) -> None:
    kept, batch = put(store), new_batch(store)
    for owner in ("", "acme2", "ACME", "%"):
        for ask in (store.file, store.open_file, store.delete_file):
            with pytest.raises(NotFoundError, match=kept.id):
                ask(owner, kept.id)
        for ask_batch in (store.batch, store.cancel):
            with pytest.raises(NotFoundError, match=batch.id):
                ask_batch(owner, batch.id)
        with pytest.raises(NotFoundError) as refused:
            store.create_batch(owner, wanted(kept.id))
        assert refused.value.param == "input_file_id"
        assert store.files(owner, limit=10) == ([], False)
        assert store.batches(owner, limit=10) == ([], False)
    assert content(store, kept.id) == b"{}\n"
    assert store.batch("acme", batch.id).status is BatchStatus.VALIDATING


@pytest.mark.parametrize("name", ["", "file-1", "../state.db", "x' OR '1'='1", "\x00", "file-" + "f" * 500])
def test_names_of_nothing(store: Store, name: str) -> None:
    put(store)
    with pytest.raises(NotFoundError):
        store.open_file("acme", name)
    with pytest.raises(NotFoundError):
        store.delete_file("acme", name)


def test_a_deleted_file_is_gone_but_for_those_who_read_it(store: Store, root: Path) -> None:
    kept = put(store, b"still here")
    _, opened = store.open_file("acme", kept.id)
    with opened:
        store.delete_file("acme", kept.id)
        assert opened.read() == b"still here"
    assert on_disk(root) == set()
    for ask in (store.file, store.open_file, store.delete_file):
        with pytest.raises(NotFoundError):
            ask("acme", kept.id)


def test_the_input_of_an_unfinished_batch_stays(store: Store, clock: VirtualClock) -> None:
    kept = put(store, lifetime=3600)
    batch = new_batch(store, file_id=kept.id)
    moves: list[Callable[[], object]] = [lambda: store.begin(batch.id, 1), lambda: store.finalize(batch.id)]
    for move in moves:
        with pytest.raises(ConflictError, match=batch.id):
            store.delete_file("acme", kept.id)
        assert move() is not None
    clock.advance(3600)
    assert store.remove_expired() == 0
    assert store.input_path(batch).read_bytes() == b"{}\n"
    with pytest.raises(NotFoundError):
        store.file("acme", kept.id)
    assert store.complete(batch.id, NOTHING) is not None
    assert store.remove_expired() == 1
    assert not store.input_path(batch).exists()


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_go_on_where_one_ended_that_is_gone(store: Store, clock: VirtualClock, newest_first: bool) -> None:
    kept = []
    for _ in range(5):
        kept.append(put(store))
        clock.advance(0.001)
    put(store, owner="other")
    found: list[StoredFile] = []
    has_more = True
    while has_more:
        page, has_more = store.files("acme", after=found[-1].id if found else "", limit=2, newest_first=newest_first)
        found += page
        store.delete_file("acme", page[-1].id)
    assert found == (kept[::-1] if newest_first else kept)


def test_a_full_last_page_has_no_more(store: Store) -> None:
    for _ in range(2):
        put(store)
    assert [store.files("acme", limit=limit)[1] for limit in (1, 2, 3)] == [True, False, False]
    assert store.files("acme", limit=9, purpose="batch_output") == ([], False)
    assert len(store.files("acme", limit=9, purpose="batch")[0]) == 2


def test_ids_sort_by_time_and_cannot_be_guessed(store: Store, clock: VirtualClock) -> None:
    ids = []
    for step in (1e-6, 0.5, 1.0, 10**9):
        ids.append(put(store).id)
        clock.advance(step)
    assert ids == sorted(ids)
    same = {put(store).id for _ in range(20)}  # at one time
    assert len(same) == 20
    assert all(first[-18:] != second[-18:] for first, second in pairwise(sorted(same)))


def test_expired_files_are_gone_before_they_are_removed(store: Store, root: Path, clock: VirtualClock) -> None:
    short, usual = put(store, lifetime=3600), put(store)
    assert usual.expires_at == int(clock.now()) + QUOTAS.lifetime
    clock.advance(3599)
    assert store.remove_expired() == 0
    assert len(store.files("acme", limit=9)[0]) == 2
    clock.advance(1)
    with pytest.raises(NotFoundError):
        store.open_file("acme", short.id)
    assert [one.id for one in store.files("acme", limit=9)[0]] == [usual.id]
    assert store.remove_expired() == 1
    assert on_disk(root) == {usual.id}


# Quotas.


def test_stored_bytes_of_a_tenant_are_bounded(store: Store, root: Path) -> None:
    kept = put(store, b"x" * 600)
    with pytest.raises(QuotaError, match=r"401 bytes do not fit: 600 are stored of the 1000 .*max_tenant_mib"):
        store.upload("acme", 401)
    store.upload("acme", 400).close()
    with closing(store.upload("acme")) as upload:  # one that did not say how long it is
        upload.write(b"x" * 400)
        with pytest.raises(QuotaError):
            upload.write(b"x")
    store.upload("acme", 400).close()
    assert on_disk(root) == {kept.id}
    put(store, b"x" * 401, owner="other")
    put(store, b"x" * 400)
    store.delete_file("acme", kept.id)
    put(store, b"x" * 600)


def test_uploads_at_the_same_time_share_the_quota(root: Path, clock: VirtualClock) -> None:
    """Of two front ends, announced or not, and before any of them is kept."""
    with closing(Store(root, QUOTAS, clock.now)) as first, closing(Store(root, QUOTAS, clock.now)) as second:
        with closing(first.upload("acme", 600)) as upload:
            with pytest.raises(QuotaError, match=r"401 bytes do not fit: 0 are stored and 6\d\d are arriving of the 1000 that"):
                second.upload("acme", 401)
            with closing(second.upload("acme")) as other:
                other.write(b"x" * 300)
                with pytest.raises(QuotaError):
                    other.write(b"x" * 101)
            put(second, b"x" * 300)
            put(second, b"x" * 1000, owner="other")
            upload.write(b"x" * 600)
            kept = upload.keep("in.jsonl")
        assert kept.id in on_disk(root)
        put(second, b"x" * 100)
        with pytest.raises(QuotaError, match="1 bytes do not fit: 1000 are stored of the 1000"):
            first.upload("acme", 1)


def test_uploads_of_a_front_end_that_was_killed_count_no_longer(root: Path, clock: VirtualClock) -> None:
    with closing(Store(root, QUOTAS, clock.now)) as store:
        lost = store.upload("acme", 900)
        lost._content._file.close()  # its lock goes with it, as with its process
        put(store, b"x" * 1000)


def test_a_state_directory_of_the_version_before_is_taken_over(root: Path, clock: VirtualClock) -> None:
    with closing(Store(root, QUOTAS, clock.now)) as store:
        kept = put(store, b"x" * 600)
    with closing(sqlite3.connect(root / "state.db")) as connection:
        connection.execute("DROP TABLE uploads")
        connection.execute("PRAGMA user_version = 1")
    with closing(Store(root, QUOTAS, clock.now)) as store:
        assert store.file("acme", kept.id) == kept
        with pytest.raises(QuotaError):
            store.upload("acme", 401)


def test_unfinished_batches_of_a_tenant_are_bounded(store: Store) -> None:
    batches = [new_batch(store) for _ in range(3)]
    with pytest.raises(QuotaError, match=r"3 batches have not ended, and a tenant may have 3 \(max_tenant_batches\)"):
        new_batch(store)
    new_batch(store, "other")
    store.cancel("acme", batches[0].id)
    with pytest.raises(QuotaError):  # it has not ended yet
        new_batch(store)
    store.cancelled(batches[0].id, NOTHING)
    new_batch(store)


def test_results_are_stored_beyond_the_quota(store: Store) -> None:
    batch = new_batch(store)
    store.begin(batch.id, 1)
    store.finalize(batch.id)
    output = store.work_folder(batch) / "output"
    output.write_bytes(b"x" * 5000)
    done = store.complete(batch.id, Results(Counts(1, 1, 0), Spent(), output))
    assert done is not None
    assert done.output_file_id is not None
    assert store.file("acme", done.output_file_id).bytes == 5000
    with pytest.raises(QuotaError):
        store.upload("acme", 1)


def test_quotas_of_a_configuration() -> None:
    config = ServerConfig(max_tenant_mib=3, max_tenant_batches=7, file_days=0.5)
    assert Quotas.of(config) == Quotas(3 * 2**20, 7, DAY // 2)
    assert Store.of(config) is None


# Batches.


def test_a_batch_from_creation_to_its_results(store: Store, root: Path, clock: VirtualClock) -> None:
    kept = put(store)
    asked = NewBatch(
        endpoint="/v1/completions",
        input_file_id=kept.id,
        model="pico",
        metadata={"night": "é"},
        output_lifetime=7200,
        key_id="web",
    )
    batch, start = store.create_batch("acme", asked), int(clock.now())
    assert (batch.wanted, batch.owner, batch.status) == (asked, "acme", BatchStatus.VALIDATING)
    assert (batch.created_at, batch.expires_at) == (start, start + WINDOW_SECONDS)
    assert store.unfinished() == [batch] == list(store.batches("acme", limit=1)[0])
    clock.advance(1)
    begun = store.begin(batch.id, 3)
    assert begun is not None
    assert (begun.status, begun.in_progress_at, begun.counts) == (BatchStatus.IN_PROGRESS, start + 1, Counts(3, 0, 0))
    assert store.progress(batch.id, Counts(3, 1, 1), Spent(10, 5, 2)) is BatchStatus.IN_PROGRESS
    assert (store.batch("acme", batch.id).counts, store.batch("acme", batch.id).spent) == (Counts(3, 1, 1), Spent(10, 5, 2))
    clock.advance(1)
    assert store.finalize(batch.id) is not None
    clock.advance(1)
    folder = store.work_folder(batch)
    (folder / "output").write_bytes(b"answers\n")
    (folder / "errors").write_bytes(b"errors\n")
    results = Results(Counts(3, 2, 1), Spent(20, 5, 4), folder / "output", folder / "errors")
    done = store.complete(batch.id, results)
    assert done == store.batch("acme", batch.id)
    assert done is not None
    assert (done.status, done.finalizing_at, done.completed_at) == (BatchStatus.COMPLETED, start + 2, start + 3)
    assert (done.counts, done.spent, store.unfinished()) == (results.counts, results.spent, [])
    for file_id, said, name in ((done.output_file_id, b"answers\n", "output"), (done.error_file_id, b"errors\n", "error")):
        assert file_id is not None
        assert content(store, file_id) == said
        expected = StoredFile(
            file_id, "acme", Purpose.BATCH_OUTPUT, f"{batch.id}_{name}.jsonl", len(said), start + 3, start + 3 + 7200
        )
        assert store.file("acme", file_id) == expected
    assert store.remove_orphans() == 1  # the work folder
    assert not folder.exists()
    assert on_disk(root) == {kept.id, done.output_file_id, done.error_file_id}


def test_empty_results_are_no_files(store: Store, root: Path) -> None:
    batch = new_batch(store)
    store.cancel("acme", batch.id)
    empty = store.work_folder(batch) / "errors"
    empty.touch()
    done = store.cancelled(batch.id, Results(Counts(), Spent(), None, empty))
    assert done is not None
    assert (done.status, done.output_file_id, done.error_file_id) == (BatchStatus.CANCELLED, None, None)
    assert on_disk(root) == {batch.wanted.input_file_id}


def test_why_a_batch_failed(store: Store) -> None:
    batch = new_batch(store)
    problems = (Problem("duplicate_custom_id", "custom_id 'a' is there twice", 7, "custom_id"), Problem("empty", "no lines"))
    failed = store.fail(batch.id, problems)
    assert failed == store.batch("acme", batch.id)
    assert failed is not None
    assert (failed.problems, failed.status) == (problems, BatchStatus.FAILED)


def test_cancelling_again_does_no_harm_and_the_end_is_the_end(store: Store) -> None:
    batch = new_batch(store)
    first = store.cancel("acme", batch.id)
    assert (first.status, store.cancel("acme", batch.id)) == (BatchStatus.CANCELLING, first)
    assert store.progress(batch.id, Counts(), Spent()) is BatchStatus.CANCELLING
    ended = store.cancelled(batch.id, NOTHING)
    assert store.cancel("acme", batch.id) == ended
    other = new_batch(store)
    store.begin(other.id, 0)
    store.finalize(other.id)
    with pytest.raises(ConflictError, match="it is finalizing"):
        store.cancel("acme", other.id)


def test_numbers_of_an_ended_batch_stay(store: Store) -> None:
    batch = new_batch(store)
    store.expire(batch.id, Results(Counts(2, 1, 1), Spent(1, 1, 1)))
    assert store.progress(batch.id, Counts(9, 9, 9), Spent(9, 9, 9)) is BatchStatus.EXPIRED
    assert store.batch("acme", batch.id).counts == Counts(2, 1, 1)


def test_only_an_upload_is_input(store: Store) -> None:
    batch = new_batch(store)
    output = store.work_folder(batch) / "output"
    output.write_bytes(b"x")
    ended = store.expire(batch.id, Results(Counts(), Spent(), output))
    assert ended is not None
    assert ended.output_file_id is not None
    with pytest.raises(InvalidRequestError, match="purpose batch"):
        new_batch(store, file_id=ended.output_file_id)


def test_batches_by_status_and_in_order(store: Store, clock: VirtualClock) -> None:
    batches = []
    for owner in ("b", "a", "b", "c"):
        batches.append(new_batch(store, owner))
        clock.advance(1)
    store.fail(batches[1].id, ())
    store.begin(batches[0].id, 1)
    assert [batch.id for batch in store.unfinished()] == [batches[index].id for index in (0, 2, 3)]
    assert [batch.id for batch in store.batches("b", limit=9)[0]] == [batches[2].id, batches[0].id]
    page, has_more = store.batches("b", limit=1)
    assert has_more
    assert [batch.id for batch in store.batches("b", after=page[0].id, limit=1)[0]] == [batches[0].id]
    counted = {status: count for status, count in store.by_status().items() if count}
    assert counted == {BatchStatus.VALIDATING: 2, BatchStatus.IN_PROGRESS: 1, BatchStatus.FAILED: 1}
    assert set(store.by_status()) == set(BatchStatus)


def test_completion_and_cancellation_cannot_both_happen(root: Path, clock: VirtualClock) -> None:
    quotas = Quotas(10**6, 10**6, DAY)
    with closing(Store(root, quotas, clock.now)) as front, closing(Store(root, quotas, clock.now)) as worker:
        for _ in range(12):
            batch = new_batch(front)
            worker.begin(batch.id, 1)
            output = worker.work_folder(batch) / "output"
            output.write_bytes(b"x")
            together = threading.Barrier(2)

            def cancel(batch: Batch = batch, together: threading.Barrier = together) -> bool:
                together.wait()
                try:
                    return front.cancel("acme", batch.id).status is BatchStatus.CANCELLING
                except ConflictError:
                    return False

            def complete(batch: Batch = batch, output: Path = output, together: threading.Barrier = together) -> bool:
                together.wait()
                worker.finalize(batch.id)
                return worker.complete(batch.id, Results(Counts(1, 1, 0), Spent(), output)) is not None

            with ThreadPoolExecutor(2) as threads:
                cancelled, completed = threads.submit(cancel), threads.submit(complete)
            assert cancelled.result() != completed.result()
            expected = BatchStatus.CANCELLING if cancelled.result() else BatchStatus.COMPLETED
            assert front.batch("acme", batch.id).status is expected
        assert on_disk(root) == {one.id for one in front.files("acme", limit=99)[0]}


# What a broken process, a full disk or somebody else's file leaves.


def test_what_belongs_to_nobody_is_removed_and_what_is_written_stays(store: Store, root: Path, clock: VirtualClock) -> None:
    kept, batch = put(store), new_batch(store)
    (root / "files" / "file-dead").write_bytes(b"renamed, but its process was killed")
    (root / "files" / "file-dead2.part").write_bytes(b"half of it")
    (root / "work" / "batch_dead").mkdir()
    (root / "work" / "batch_dead" / "journal").touch()
    store.work_folder(batch).joinpath("journal").touch()
    with closing(Store(root, QUOTAS, clock.now)) as worker, closing(store.upload("acme")) as upload:
        upload.write(b"on its way")
        assert worker.remove_orphans() == 3
        late = upload.keep("late.jsonl")
        assert worker.remove_orphans() == 0
    assert on_disk(root) == {kept.id, batch.wanted.input_file_id, late.id}
    assert store.work_folder(batch).joinpath("journal").exists()


def test_a_new_file_that_was_taken_for_an_orphan_is_made_again(root: Path) -> None:
    disk = Disk(root)
    part = root / "files" / "file-1.part"
    with part.open("wb") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        waiter = f":{part.stat().st_ino} "
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(disk.write, "file-1")
            until(lambda: any("->" in line and waiter in line for line in Path("/proc/locks").read_text().splitlines()))
            part.unlink()
            fcntl.flock(orphan, fcntl.LOCK_UN)
            new = writing.result()
    new.write(b"here")
    new.publish()
    new.keep()
    new.close()
    assert disk.path("file-1").read_bytes() == b"here"


def test_an_upload_that_is_closed_while_it_is_kept_is_kept_whole(store: Store, root: Path) -> None:
    with closing(Database(root / "state.db")) as other, ThreadPoolExecutor(2) as threads:
        upload = store.upload("acme")
        upload.write(b"whole")
        with other.writing():
            keeping = threads.submit(upload.keep, "in.jsonl")
            until(lambda: not any(name.endswith(".part") for name in on_disk(root)))
            closed = threads.submit(upload.close)
            wait([closed], timeout=0.2)  # it should not come to its end yet
        kept = keeping.result()
        closed.result()
    assert content(store, kept.id) == b"whole"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_file(root: Path) -> None:
    store = Store(root, Quotas(2**30, 1, DAY))
    with closing(store), closing(store.upload("acme")) as upload, files_no_longer_than(8 * 2**20):
        upload.write(b"x" * 6 * 2**20)
        with pytest.raises(StorageFullError):
            upload.write(b"x" * 6 * 2**20)
    assert on_disk(root) == set()


def write_more(database: Database, value: object) -> None:
    with database.writing() as connection:
        connection.execute("CREATE TABLE more (text)")
        connection.execute("INSERT INTO more VALUES (?)", (value,))


def test_no_room_in_the_database(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "state.db")) as database:
        with database.reading() as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StorageFullError):
            write_more(database, "x" * 10**6)
        with database.reading() as connection:
            assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone()[0] == 0


def test_a_database_that_stays_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    with closing(Database(tmp_path / "state.db")) as first, closing(Database(tmp_path / "state.db")) as second:
        with first.writing(), pytest.raises(OverloadedError, match=r"locked for 0\.05 s"), second.writing():
            pass
        with first.writing(), second.reading() as connection:  # who reads waits for nobody
            assert connection.execute("SELECT count(*) FROM files").fetchone()[0] == 0
        with second.writing():
            pass


def test_an_exception_undoes_what_was_written(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "state.db")) as database:
        with pytest.raises(sqlite3.ProgrammingError):
            write_more(database, object())
        with database.reading() as connection:
            assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone()[0] == 0


def test_what_is_durable_and_what_indexes_find(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "state.db")) as database, database.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        for query in (
            f"SELECT id FROM batches WHERE owner = ? AND input_file_id = ? AND {UNFINISHED}",
            f"SELECT * FROM batches WHERE {UNFINISHED} ORDER BY id",
            "SELECT * FROM files WHERE owner = ? AND id < ? ORDER BY id DESC LIMIT 3",
        ):
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", ("a", "b")[: query.count("?")]).fetchall()
            assert "SEARCH" in plan[0]["detail"], query


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "state.db").write_bytes(b"no database at all" * 100)
    with closing(Store(tmp_path / "newer", QUOTAS)):
        pass
    with closing(sqlite3.connect(tmp_path / "newer" / "state.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    for name, words in (("file", "cannot use"), ("other", "cannot use"), ("newer", "is of version 99, not 2")):
        with pytest.raises(ConfigError, match=words) as refused:
            Store(tmp_path / name, QUOTAS)
        assert refused.value.param == "state_dir"


def test_what_is_kept_is_nobody_elses_to_read(store: Store, root: Path) -> None:
    kept = put(store)
    assert root.stat().st_mode & 0o077 == 0
    assert (root / "files" / kept.id).stat().st_mode & 0o077 == 0
