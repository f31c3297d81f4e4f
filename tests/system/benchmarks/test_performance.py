"""The tables of the performance pages: what is reached is said, and what is not measured, too."""

from pathlib import Path

import pytest

from benchmarks import performance
from benchmarks.peers.report import compared

ROUND = {"decode_tokens_per_s": 120.0, "seconds": 8.0, "itl_p99_s": 0.2}
PEER = {"decode_tokens_per_s": 100.0, "seconds": 9.0, "itl_p99_s": 0.1}
SIZES = {"ready_seconds": 1.0, "memory_ready": 1e9, "memory_loaded": 2e9}
PEERS = {
    "cpu": "some",
    "cores": 2,
    "date": "today",
    "rounds": 1,
    "minutes": 3.2,
    "engines": {"jaxserve": {**SIZES, "memory_loaded": 3e9}, "vllm": SIZES, "llama.cpp": SIZES},
    "compared": compared(
        {
            "16 streams": {"jaxserve": [ROUND], "vllm": [PEER], "llama.cpp": [PEER]},
            "shared prefix": {"jaxserve": [ROUND], "vllm": [PEER], "llama.cpp": [PEER]},
        }
    ),
    "wrong_tokens": {"jaxserve": 0, "vllm": 0, "llama.cpp": 0},
    "agreement": {"bfloat16": {"16 streams": {"tokens": 128, "others": 2, "gap": 0.01}}},
}
START = {"seconds": 20.0, "phases": {"imports": 2.0, "programs": 18.0}}
COLD = {
    "cpu": "some",
    "versions": {},
    "pico": {"first": START, "second": {**START, "seconds": 5.0}, "second_to_first_seconds": 0.25},
}
PARTS = {"projections": 8.0, "nothing": 2.0}
CASE = {"step": "decode, 16 rows", "ms": 10.0, "bytes_ms": 4.0, "flops_ms": 8.0, "of_bound": 1.25, "parts_ms": PARTS}
TIMELINE = {"cases": [{**CASE, "bytes_per_s": 4e10, "flops_per_s": 3e11}]}


def test_what_is_reached_and_what_is_not() -> None:
    host = {"median_microseconds": {"decode": {"256": {"schedule": 400.0, "engine": 1000.0, "all": 2000.0}}}}
    lines = performance.reached({"peers": PEERS, "step_timeline": TIMELINE, "host_loop": host, "cold_start": COLD}).splitlines()
    assert lines[2:] == [
        "| 16 streams: decode_tokens_per_s, beside vllm | >= 1.1x | 1.20x (1.20-1.20) | yes |",
        "| shared prefix: seconds, beside vllm | >= 1.25x | 1.12x (1.12-1.12) | **no** |",
        "| memory at ready, beside the leaner of vLLM and OpenVINO | <= 1.2x | 1.00x | yes |",
        "| memory after the load, beside the leaner of vLLM and OpenVINO | <= 1.2x | 1.50x | **no** |",
        "| decode step of 16 rows over its bound | <= 1.5 | 1.25 | yes |",
        "| host loop at 256 rows | < 1 ms | 1.00 ms | **no** |",
        "| pico: second start over first start | <= 0.25 | 0.250 | yes |",
    ]


def test_starts() -> None:
    assert performance.started(COLD).splitlines()[2:] == [
        "| pico | first | 20.0 | 2.0 | 18.0 |",
        "| pico | second | 5.0 | 2.0 | 18.0 |",
    ]


def test_pages_are_written_from_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in performance.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text((performance.ROOT / page).read_text())
    monkeypatch.setattr(performance, "ROOT", tmp_path)
    monkeypatch.setattr(performance, "read", {"peers": PEERS, "step_timeline": TIMELINE}.get)
    performance.main()
    (page,) = ((tmp_path / name).read_text() for name in performance.PAGES)
    assert "| 16 streams: decode, tokens/s | 120 | 100 | 100 | 1.20x (1.20-1.20) vllm |" in page
    assert "some, 2 cores, today, 1 rounds in 3 minutes; medians." in page
    assert "| 16 streams | 128 | 2 (0.0100) |" in page
    assert "| decode, 16 rows | 10.0 | 4.0 | 8.0 | 1.25 | 8.0 | 2.0 |" in page
    assert "Bounds from 40 GB/s and 300 GFLOP/s." in page
    assert "Not measured yet: `python -m benchmarks.cold_start`." in page
    performance.main()
    assert [(tmp_path / name).read_text() for name in performance.PAGES] == [page]
