"""The comparison with other engines: files for them, what is read from their streams, and how figures are made of it."""

import json
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks.batch_requests import word
from benchmarks.peers.__main__ import rounds_within
from benchmarks.peers.checkpoint import gguf_fields, gguf_tensor
from benchmarks.peers.clients import Stream, read, run
from benchmarks.peers.engines import free_port
from benchmarks.peers.figures import best_peer, figures, ratios
from benchmarks.peers.gguf import ALIGNMENT, Tensor, write_gguf
from benchmarks.peers.hosting import Put, serve
from benchmarks.peers.report import compared, draw, table
from benchmarks.peers.workloads import Request, Workload, mixed, shared_prefix, streams


def test_a_gguf_file_has_fields_tensors_and_aligned_data(tmp_path: Path) -> None:
    one, two = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(5, ml_dtypes.bfloat16)
    fields = {"a": 7, "b": 0.5, "c": True, "d": "x", "e": ["p", "q"], "f": [1, -1]}
    write_gguf(tmp_path / "file", fields, [Tensor("one", one), Tensor("two", two)])
    data = (tmp_path / "file").read_bytes()
    assert data[:24] == b"GGUF" + struct.pack("<IQQ", 3, 2, 6)
    assert struct.pack("<Q", 1) + b"c" + struct.pack("<I?", 7, True) in data
    assert struct.pack("<IIQ", 9, 5, 2) + struct.pack("<ii", 1, -1) in data
    assert b"one" + struct.pack("<IQQIQ", 2, 3, 2, 0, 0) in data
    assert b"two" + struct.pack("<IQIQ", 1, 5, 30, ALIGNMENT) in data
    assert len(data) % ALIGNMENT == 0
    assert data[-2 * ALIGNMENT :] == one.tobytes().ljust(ALIGNMENT, b"\0") + two.tobytes().ljust(ALIGNMENT, b"\0")


def test_blocks_of_a_gguf_file_are_scales_and_numbers() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    rows[0, :32] = 0
    whole, half = Tensor("a", rows, "q8_0").data(), Tensor("a", rows, "q4_0").data()
    assert (len(whole), len(half)) == (6 * 34, 6 * 18)
    for block, numbers in enumerate(rows.reshape(6, 32)):
        scale, *levels = struct.unpack_from("<e32b", whole, 34 * block)
        assert np.abs(np.array(levels) * scale - numbers).max() <= 0.51 * scale
        scale, *codes = struct.unpack_from("<e16B", half, 18 * block)
        levels = [code & 15 for code in codes] + [code >> 4 for code in codes]
        below = np.abs(numbers).max() / 8 if scale else 0  # what lies a step behind the last code is cut to it
        assert np.abs((np.array(levels) - 8) * scale - numbers).max() <= 1.01 * below
        assert np.median(np.abs((np.array(levels) - 8) * scale - numbers)) <= 0.51 * below


def test_the_embedding_table_has_the_finer_blocks() -> None:
    table, head = np.ones((4, 32), np.float32), np.ones((4, 32), np.float32)
    assert gguf_tensor("model.embed_tokens.weight", table, np.float32, "q4_0").blocks == "q8_0"
    assert gguf_tensor("lm_head.weight", head, np.float32, "q4_0").blocks == "q4_0"
    assert gguf_tensor("model.norm.weight", table[0], np.float32, "q4_0").blocks is None


def test_queries_are_interleaved_and_norms_widened() -> None:
    name = "model.layers.3.self_attn.q_proj.weight"
    made = gguf_tensor(name, np.arange(1024, dtype=np.float32)[:, None].astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16)
    assert made.name == "blk.3.attn_q.weight"
    assert made.array[:4, 0].tolist() == [0, 32, 1, 33]
    assert made.array[64:67, 0].tolist() == [64, 96, 65]
    norm = gguf_tensor("model.norm.weight", np.ones(4, ml_dtypes.bfloat16), np.float16)
    assert (norm.name, norm.array.dtype) == ("output_norm.weight", np.dtype(np.float32))
    assert gguf_fields()["tokenizer.ggml.tokens"][3] == word(3).replace(" ", "Ġ")


def test_streams_are_read_however_they_are_cut() -> None:
    events = [{"choices": [{"text": word(5)}]}, {"choices": [{"text": word(6) + word(7)}]}]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    text_ends = len(body)
    body += b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'
    for cut in range(len(body)):
        stream = Stream(Request([1], 3))
        read(stream, [(1.0, body[:cut]), (2.0, body[cut:])])
        assert stream.text == word(5) + word(6) + word(7)
        assert stream.output_tokens == 3
        assert [count for _, count in stream.arrivals] == [1, 3]
        assert stream.arrivals[-1][0] == (1.0 if cut >= text_ends else 2.0)


def test_steady_decode_is_what_comes_while_all_decode() -> None:
    early = Stream(Request([0] * 10, 5), 0.0, [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4), (5.0, 5)], 5.0, "", 5)
    late = Stream(Request([0] * 10, 5), 0.0, [(2.5, 1), (3.0, 2), (4.0, 3), (5.0, 4), (6.0, 5)], 6.0, "", 5)
    found = figures([early, late])
    assert found["decode_tokens_per_s"] == pytest.approx((3 + 3) / 2.5)
    assert found["output_tokens_per_s"] == pytest.approx(10 / 6)
    assert found["ttft_p50_s"] == pytest.approx(1.75)
    assert found["prefill_tokens_per_s"] == pytest.approx((10 + 4) / 2)


def test_streams_one_after_another_have_each_a_rate() -> None:
    one = Stream(Request([0], 3), 0.0, [(1.0, 1), (2.0, 3)], 2.0, "", 3)
    two = Stream(Request([0], 3), 2.0, [(3.0, 1), (3.5, 3)], 3.5, "", 3)
    assert figures([one, two])["decode_tokens_per_s"] == pytest.approx(3.0)
    overlapping = Stream(Request([0], 3), 1.5, [(3.0, 1), (3.5, 3)], 3.5, "", 3)
    assert "decode_tokens_per_s" not in figures([one, overlapping])


def test_ratios_say_how_many_times_better_we_are() -> None:
    ours, theirs = [{"rate": 4.0, "seconds": 2.0}] * 2, [{"rate": 2.0, "seconds": 6.0}, {"rate": 8.0, "seconds": 1.0}]
    assert ratios(ours, theirs, "rate") == {"median": 1.25, "min": 0.5, "max": 2.0}
    assert ratios(ours, theirs, "seconds") == {"median": 1.75, "min": 0.5, "max": 3.0}
    runs = {"own": ours, "slow": [{"rate": 1.0, "seconds": 9.0}], "fast": [{"rate": 3.0, "seconds": 1.0}]}
    assert best_peer(runs, "own", "rate") == best_peer(runs, "own", "seconds") == "fast"


def test_every_round_has_its_own_tokens_and_the_same_lengths() -> None:
    for make in (streams(4), mixed(4, rate=2.0), shared_prefix(4)):
        assert make(0) == make(0)
        assert make(0)[0].prompt != make(1)[0].prompt
    shared = shared_prefix(4)(0)
    assert len({tuple(request.prompt[:1024]) for request in shared}) == 1
    assert len({tuple(request.prompt[1024:]) for request in shared}) == 4
    arrivals = [request.arrival for request in mixed(8, rate=2.0)(0)]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0


def test_no_round_begins_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0, 10.0, 20.0, 20.0, 41.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert list(rounds_within(1.0, 5, 0.0)) == [0, 1, 2], "a fourth would take 21 s more"
    now = iter([0.0, 10.0, 10.0, 20.0])
    assert list(rounds_within(1.0, 2, 0.0)) == [0, 1]


def test_a_table_and_a_picture_of_what_all_engines_have(tmp_path: Path) -> None:
    rounds = [{"decode_tokens_per_s": 50.0}, {"decode_tokens_per_s": 100.0}]
    runs = {"one stream": {"jaxserve": rounds, "vllm": [{"decode_tokens_per_s": 25.0}] * 2}}
    engines = {name: {"ready_seconds": 1.0, "memory_ready": 2e9, "memory_loaded": 3e9} for name in ("jaxserve", "vllm")}
    report = {"engines": engines, "compared": compared(runs), "wrong_tokens": {"jaxserve": 0, "vllm": 3}}
    assert "| one stream: decode, tokens/s | 75 | 25 | 3.00x (2.00-4.00) vllm |" in table(report)
    assert "| wrong tokens | 0 | 3 |" in table(report)
    draw(report, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


class _Counting:
    """An engine that counts on from the prompt's last token."""

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        tokens: Sequence[int] = range(prompt[-1] + 1, prompt[-1] + 1 + count)
        for at in range(0, count, 2):
            put(tokens[at : at + 2])


def test_hosted_engines_speak_the_protocol_that_clients_read() -> None:
    port = free_port()
    threading.Thread(target=serve, args=(_Counting(), port), daemon=True).start()
    load = Workload("", lambda seed: [Request([7 + seed], 3), Request([20], 4)], clients=1)
    for _ in range(100):
        try:
            first, second = run(f"http://127.0.0.1:{port}", {"model": "any"}, load, 1)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    assert first.text == word(9) + word(10) + word(11)
    assert second.text == "".join(map(word, range(21, 25)))
