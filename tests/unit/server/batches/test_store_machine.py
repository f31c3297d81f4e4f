"""Whatever is asked of batches, in whatever order and by whichever process, that comes and goes: only legal moves are made."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from jaxserve.clock import VirtualClock
from jaxserve.errors import ConflictError, QuotaError
from server.batches.records import FINAL, FOLLOWING, Batch, BatchStatus, Counts, NewBatch, Problem, Results, Spent
from server.batches.store import Quotas, Store

# As OpenAI's manual has it.
LEGAL = {
    "validating": {"in_progress", "failed", "expired", "cancelling"},
    "in_progress": {"finalizing", "failed", "expired", "cancelling"},
    "finalizing": {"completed", "failed", "expired"},
    "cancelling": {"cancelled"},
}
PROCESSES = st.integers(0, 1)
QUOTAS = Quotas(stored_bytes=10**6, unfinished_batches=4, lifetime=10**6)


def test_the_table_of_statuses() -> None:
    assert {status.value: {one.value for one in following} for status, following in FOLLOWING.items() if following} == LEGAL
    assert {status.value for status in FINAL} == {"failed", "completed", "expired", "cancelled"}
    assert set(FOLLOWING) == set(BatchStatus)


class Batches(RuleBasedStateMachine):
    """A front end and the worker, and what each batch must be."""

    batches = Bundle("batches")

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.clock = VirtualClock(1_800_000_000.0)
        self.stores = [Store(self.root, QUOTAS, self.clock.now) for _ in range(2)]
        self.expected: dict[str, str] = {}
        self.files: set[str] = set()

    @rule(target=batches, process=PROCESSES)
    def create(self, process: int) -> object:
        store = self.stores[process]
        with closing(store.upload("acme")) as upload:
            upload.write(b"{}\n")
            kept = upload.keep("in.jsonl")
        self.files.add(kept.id)
        unfinished = sum(status in LEGAL for status in self.expected.values())
        try:
            batch = store.create_batch("acme", NewBatch(endpoint="/v1/completions", input_file_id=kept.id, model="pico"))
        except QuotaError:
            assert unfinished == QUOTAS.unfinished_batches
            return multiple()
        assert unfinished < QUOTAS.unfinished_batches
        self.expected[batch.id] = "validating"
        return batch

    @rule(batch=batches, process=PROCESSES)
    def begin(self, batch: Batch, process: int) -> None:
        self.moved(batch, "in_progress", self.stores[process].begin(batch.id, 2))

    @rule(batch=batches, process=PROCESSES)
    def finalize(self, batch: Batch, process: int) -> None:
        self.moved(batch, "finalizing", self.stores[process].finalize(batch.id))

    @rule(batch=batches, process=PROCESSES)
    def fail(self, batch: Batch, process: int) -> None:
        self.moved(batch, "failed", self.stores[process].fail(batch.id, [Problem("code", "message", 1)]))

    @rule(batch=batches, process=PROCESSES, end=st.sampled_from(["completed", "expired", "cancelled"]), outputs=st.booleans())
    def end(self, batch: Batch, process: int, end: str, outputs: bool) -> None:
        store = self.stores[process]
        output = store.work_folder(batch) / "output"
        output.write_bytes(b"answer\n" * outputs)
        ending = {"completed": store.complete, "expired": store.expire, "cancelled": store.cancelled}[end]
        found = ending(batch.id, Results(Counts(2, int(outputs), 0), Spent(), output))
        self.moved(batch, end, found)
        if found is not None:
            assert (found.output_file_id is not None) == outputs
            if found.output_file_id is not None:
                self.files.add(found.output_file_id)

    @rule(batch=batches, process=PROCESSES)
    def cancel(self, batch: Batch, process: int) -> None:
        before = self.expected[batch.id]
        found = None
        with suppress(ConflictError):
            found = self.stores[process].cancel("acme", batch.id)
        if before in ("cancelling", "cancelled"):
            assert found is not None
            assert found.status.value == before
        else:
            self.moved(batch, "cancelling", found)

    @rule(batch=batches, process=PROCESSES, done=st.integers(0, 2))
    def progress(self, batch: Batch, process: int, done: int) -> None:
        store = self.stores[process]
        before = store.batch("acme", batch.id).counts
        assert store.progress(batch.id, Counts(2, done, 0), Spent()).value == self.expected[batch.id]
        unfinished = self.expected[batch.id] in LEGAL
        assert store.batch("acme", batch.id).counts == (Counts(2, done, 0) if unfinished else before)

    @rule(batch=batches, process=PROCESSES)
    def delete_input(self, batch: Batch, process: int) -> None:
        file_id = batch.wanted.input_file_id
        if file_id not in self.files:
            return
        try:
            self.stores[process].delete_file("acme", file_id)
        except ConflictError:
            assert self.expected[batch.id] in LEGAL
        else:
            assert self.expected[batch.id] not in LEGAL
            self.files.discard(file_id)

    @rule(process=PROCESSES)
    def come_back(self, process: int) -> None:
        self.stores[process].close()
        self.stores[process] = Store(self.root, QUOTAS, self.clock.now)
        self.stores[process].remove_orphans()

    @rule(seconds=st.floats(0.1, 100))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def moved(self, batch: Batch, status: str, found: Batch | None) -> None:
        """A move was made if it is legal, and only then."""
        legal = status in LEGAL.get(self.expected[batch.id], ())
        assert (found is not None) == legal
        if found is not None:
            self.expected[batch.id] = status
            assert found.status.value == status
            assert getattr(found, f"{status}_at") == int(self.clock.now())

    @invariant()
    def everything_is_as_it_was_said(self) -> None:
        for store in self.stores:
            found = store.batches("acme", limit=100)[0]
            assert {batch.id: batch.status.value for batch in found} == self.expected
            assert {batch.id for batch in store.unfinished()} == {
                batch_id for batch_id, status in self.expected.items() if status in LEGAL
            }
            assert {one.id for one in store.files("acme", limit=100)[0]} == self.files
        assert {path.name for path in (self.root / "files").iterdir()} == self.files

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.root)


Batches.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None, derandomize=True)
TestBatches = Batches.TestCase
