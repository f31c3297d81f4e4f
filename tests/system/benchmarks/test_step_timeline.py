"""How the time of a step is divided: events of threads, kinds of ops, and what a step must read and compute."""

from pathlib import Path

import pytest

from benchmarks import llama150m
from benchmarks.step_timeline import COLOURS, draw, innermost, kinds, shared, work

HLO = """HloModule jit_step, is_scheduled=true

%written (c: bf16[2,100,16], k: bf16[4,16]) -> bf16[2,100,16] {
  %c = bf16[2,100,16]{2,1,0} parameter(0)
  %k = bf16[4,16]{1,0} parameter(1)
  ROOT %s = bf16[2,100,16]{2,1,0} scatter(%c, %k, %k)
}

%drawn (r: f32[4,32000]) -> s32[4] {
  %r = f32[4,32000]{1,0} parameter(0)
  ROOT %sorted = s32[4]{0} custom-call(%r), custom_call_target="TopK"
}

ENTRY %main (w: bf16[64,32], x: f32[4,32]) -> s32[4] {
  %w = bf16[64,32]{1,0} parameter(0)
  %x = f32[4,32]{1,0} parameter(1)
  %normed = bf16[4,32]{1,0} fusion(%x), kind=kLoop, calls=%drawn
  %qkv = f32[4,64]{1,0} custom-call(%normed, %w), custom_call_target="jaxserve_Matmul_1"
  %cache = bf16[2,100,16]{2,1,0} fusion(%x, %x), kind=kLoop, calls=%written
  %attended = bf16[4,32]{1,0} custom-call(%qkv, %cache), custom_call_target="jaxserve_RaggedPagedAttention_1"
  %logits = f32[4,32000]{1,0} custom-call(%attended, %w), custom_call_target="jaxserve_Matmul_1"
  %best = s32[4]{0} reduce(%logits), dimensions={1}
  ROOT %either = s32[4]{0} conditional(%best, %logits), branch_computations={%drawn, %drawn}
}
"""


def test_kinds_of_ops() -> None:
    found = kinds(HLO)
    expected = {
        "normed": "small ops",
        "qkv": "projections",
        "cache": "KV write",
        "attended": "attention",
        "logits": "head",
        "best": "sampler",
        "either": "sampler",
        "sorted": "sampler",
    }
    assert {name: found[name] for name in expected} == expected
    assert set(found.values()) <= set(COLOURS)


def test_an_event_owns_what_none_within_it_has() -> None:
    events = [(0.0, 10.0, "outer"), (2.0, 5.0, "within"), (3.0, 4.0, "deep"), (5.0, 6.0, "next"), (12.0, 13.0, "late")]
    expected = [
        (0, 2, "outer"),
        (2, 3, "within"),
        (3, 4, "deep"),
        (4, 5, "within"),
        (5, 6, "next"),
        (6, 10, "outer"),
        (12, 13, "late"),
    ]
    assert sorted(innermost(events)) == expected


def test_moments_of_several_threads_are_shared() -> None:
    found = shared([(0.0, 4.0, "a"), (2.0, 4.0, "b"), (3.0, 5.0, "b"), (7.0, 8.0, "c")])
    assert found == pytest.approx({"a": 2 + 0.5 + 1 / 3, "b": 0.5 + 2 / 3 + 1, "c": 1})


def test_what_a_step_must_do() -> None:
    read, operations = work(((1,) * 4, (100,) * 4))
    assert read == 2 * llama150m.WEIGHTS_READ + 2 * llama150m.KV_VALUES_PER_TOKEN * 400
    assert operations == 4 * (2 * llama150m.WEIGHTS_READ + 4 * 12 * 1024 * 100)
    _, prompt = work(((10,), (10,)))
    assert prompt == 2 * (10 * llama150m.LAYER_WEIGHTS + llama150m.HEAD_WEIGHTS) + 4 * 12 * 1024 * 55
    _, chunk = work(((10,), (30,)))
    assert chunk - prompt == 4 * 12 * 1024 * 200


def test_a_picture(tmp_path: Path) -> None:
    parts = dict.fromkeys(COLOURS, 1.0)
    draw([{"step": "decode", "ms": 7.0, "parts_ms": parts, "bytes_ms": 3.0, "flops_ms": 2.0}], tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")
