"""A process that is killed while it stores: what it said is there, and nothing else is left of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from server.batches.records import BatchStatus
from server.batches.store import Quotas, Store
from tests.support.serve_process import ROOT

QUOTAS = Quotas(10**12, 10**6, 10**6)
CONTENT = b"0123456789" * 1000

# Uploads, and runs batches over what it uploaded; says each thing once it is done.
WRITER = """
import itertools, sys
from contextlib import closing
from server.batches.records import Counts, NewBatch, Results, Spent
from server.batches.store import Quotas, Store

store = Store(sys.argv[1], Quotas(10**12, 10**6, 10**6))
for number in itertools.count():
    with closing(store.upload("acme")) as upload:
        for start in range(0, 10_000, 1000):
            upload.write(b"0123456789" * 100)
        kept = upload.keep("in.jsonl")
    print("file", kept.id, flush=True)
    batch = store.create_batch("acme", NewBatch(endpoint="/v1/completions", input_file_id=kept.id, model="pico"))
    store.begin(batch.id, 1)
    store.finalize(batch.id)
    output = store.work_folder(batch) / "output"
    output.write_bytes(b"0123456789" * 1000)
    done = store.complete(batch.id, Results(Counts(1, 1, 0), Spent(), output))
    print("batch", done.id, done.output_file_id, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_kill(tmp_path: Path, seed: int) -> None:
    said = tmp_path / "said"
    with said.open("wb") as out:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "state")], cwd=ROOT, stdout=out)
    deadline = time.monotonic() + 30
    while said.stat().st_size == 0:
        assert writer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    lines = [line.split() for line in said.read_text().splitlines(keepends=True) if line.endswith("\n")]
    with closing(Store(tmp_path / "state", QUOTAS)) as store:
        for kind, *ids in lines:
            if kind == "batch":
                batch = store.batch("acme", ids[0])
                assert (batch.status, batch.output_file_id) == (BatchStatus.COMPLETED, ids[1])
        named = {file_id for kind, *ids in lines for file_id in ids if file_id.startswith("file-")}
        files = {one.id: one for one in store.files("acme", limit=10_000)[0]}
        assert named <= files.keys()
        assert len(files) - len(named) <= 1  # the one that was not said any more
        for file_id, record in files.items():
            _, opened = store.open_file("acme", file_id)
            with opened:
                assert opened.read() == CONTENT
            assert record.bytes == len(CONTENT)
        store.remove_orphans()
        assert {path.name for path in (tmp_path / "state" / "files").iterdir()} == files.keys()
        running = {batch.id for batch in store.unfinished()}
        assert {path.name for path in (tmp_path / "state" / "work").iterdir()} <= running
