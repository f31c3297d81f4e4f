"""Reading XLA's texts: HLO and lists of thunks, small ones written by hand."""

from pathlib import Path

import pytest

from jaxserve.aot.facts import Collective, Facts, read_facts
from jaxserve.aot.hlo import Array, Module
from jaxserve.aot.thunks import Launches, parse_launches, read_launches

HLO = r"""HloModule jit_step, is_scheduled=true, entry_computation_layout={(bf16[4,8]{1,0})->bf16[4,8]{1,0}}

FileNames
1 "step.py"

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%turned (p: bf16[64,32]) -> bf16[32,64] {
  %p = bf16[64,32]{1,0} parameter(0)
  ROOT %t = bf16[32,64]{1,0} transpose(%p), dimensions={1,0}
}

%product (p: bf16[64,32], x: bf16[64,64]) -> bf16[64,64] {
  %p = bf16[64,32]{1,0} parameter(0)
  %x = bf16[64,64]{1,0} parameter(1)
  ROOT %d = bf16[64,64]{1,0} dot(%x, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%written (c: bf16[2,100,16], k: bf16[4,16]) -> bf16[2,100,16] {
  %c = bf16[2,100,16]{2,1,0} parameter(0)
  %k = bf16[4,16]{1,0} parameter(1)
  ROOT %s = bf16[2,100,16]{2,1,0} scatter(%c, %k, %k), to_apply=%add
}

%kernel (c: bf16[2,100,16], k: bf16[4,16]) -> bf16[2,100,16] {
  %c = bf16[2,100,16]{2,1,0} parameter(0)
  %k = bf16[4,16]{1,0} parameter(1)
  %some = bf16[2,16]{1,0} slice(%k), slice={[0:2], [0:16]}
  ROOT %called = bf16[2,100,16]{2,1,0} custom-call(%c, %some), custom_call_target="mosaic_gpu_v2"
}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]{0}) parameter(0)
  %part = f32[8]{0} get-tuple-element(%b), index=1
  %loop_sum = f32[8]{0} all-reduce(%part), to_apply=%add
  ROOT %again = (s32[], f32[8]{0}) tuple(%part, %loop_sum)
}

%condition (b: (s32[], f32[8])) -> pred[] {
  %b = (s32[], f32[8]{0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

%rare (r: f32[8]) -> f32[64] {
  %r = f32[8]{0} parameter(0)
  %rare_sum = f32[4,32]{1,0} all-reduce(%r), to_apply=%add
  ROOT %gathered = f32[64]{0} all-gather(%r), dimensions={0}
}

%usual (u: f32[8]) -> f32[64] {
  %u = f32[8]{0} parameter(0)
  ROOT %zeros = f32[64]{0} broadcast(%u), dimensions={}
}

ENTRY %main (w: bf16[64,32], n: bf16[32], c: bf16[2,100,16], k: bf16[4,16], x: f32[4,32]) -> f32[4,32] {
  %w = bf16[64,32]{1,0} parameter(0), metadata={op_name="params[\'layers\'][\'0\'][\'w\']"}
  %n = bf16[1,32]{1,0} parameter(1), metadata={op_name="params[\'norm\']"}
  %c = bf16[2,100,16]{2,1,0} parameter(2), metadata={op_name="state.kv_pages"}
  %k = bf16[4,16]{1,0} parameter(3)
  %x = f32[4,32]{1,0} parameter(4)
  %view = bf16[2048]{0} bitcast(%w)
  %layer_sum = f32[4,32]{1,0} all-reduce(%x), to_apply=%add, metadata={op_name="jit(step)/dot_general" source=")"}
  %started = (f32[4,32]{1,0}, f32[4,32]{1,0}) all-reduce-start(%x), to_apply=%add
  %other_sum = f32[4]{0} all-reduce(%k), to_apply=%add
  %scale = bf16[1,32]{1,0} copy(%n)
  %looked_up = bf16[4,32]{1,0} fusion(%w, %k), kind=kLoop, calls=%turned
  %good = bf16[64,64]{1,0} fusion(%w, %k), kind=kCustom, calls=%product
  %cache = bf16[2,100,16]{2,1,0} fusion(%c, %k), kind=kInput, calls=%written
  %attended = bf16[2,100,16]{2,1,0} fusion(%cache, %k), kind=kCustom, calls=%kernel
  %loop = (s32[], f32[8]{0}, /*index=2*/f32[8]{0}) while(%x), condition=%condition, body=%body
  %either = f32[64]{0} conditional(%x, %x, %x), branch_computations={%rare, %usual}
MORE
  ROOT %done = f32[4,32]{1,0} all-reduce-done(%started)
}
"""


def facts(*more: str) -> Facts:
    module = Module.parse(HLO.replace("MORE", "\n".join(f"  {line}" for line in more)))
    return read_facts(module, tokens=4, hidden_size=32, cache_elements=(3200,))


def test_collectives_by_when_they_run() -> None:
    found = facts()
    assert found.activation_all_reduces == 2
    assert found.collectives == (
        Collective(kind="all-gather", bytes=256, when="branch", count=1),
        Collective(kind="all-reduce", bytes=16, when="always", count=1),
        Collective(kind="all-reduce", bytes=32, when="loop", count=1),
        Collective(kind="all-reduce", bytes=512, when="always", count=2),
        Collective(kind="all-reduce", bytes=512, when="branch", count=1),
    )


def test_products_norms_and_updates_are_no_copies() -> None:
    assert facts().weight_copies == ()
    assert facts().cache_copies == ()


def test_a_weight_that_is_read_twice_is_named() -> None:
    """As it is or through a view; a norm's scale may be read again."""
    name = "params['layers']['0']['w']"
    assert facts().weights_read_again == (name,)
    once = HLO.replace("fusion(%w, %k), kind=kLoop", "fusion(%n, %k), kind=kLoop")
    for more, expected in (("", ()), ("  %other = bf16[64,64]{1,0} fusion(%view, %k), kind=kCustom, calls=%product", (name,))):
        module = Module.parse(once.replace("MORE", more))
        assert read_facts(module, tokens=4, hidden_size=32, cache_elements=(3200,)).weights_read_again == expected


@pytest.mark.parametrize(
    "line",
    [
        "%moved = bf16[64,32]{0,1} copy(%w)",
        "%moved = bf16[32,64]{1,0} fusion(%w), kind=kInput, calls=%turned",
        "%moved = f32[64,32]{1,0} convert(%view)",
        "%moved = bf16[512,32]{1,0} all-gather(%w), dimensions={0}",
    ],
)
def test_a_copied_weight_is_named(line: str) -> None:
    (copy,) = facts(line).weight_copies
    assert copy.startswith("params['layers']['0']['w']: ")


@pytest.mark.parametrize(
    "line",
    [
        "%moved = bf16[2,100,16]{2,1,0} copy(%c)",
        "%moved = (bf16[2,100,16]{2,1,0}, bf16[2,100,16]{2,1,0}, u32[]) copy-start(%c)",
        "%moved = bf16[200,16]{1,0} fusion(%c), kind=kLoop, calls=%turned",
        "%moved = bf16[2,800,16]{2,1,0} all-gather(%c), dimensions={1}",
    ],
)
def test_a_copied_cache_is_seen(line: str) -> None:
    assert len(facts(line).cache_copies) == 1


def test_instructions_as_they_are_written() -> None:
    module = Module.parse(HLO.replace("MORE", ""))
    by_name = {line.name: line for line in module.computations["main"]}
    assert module.entry == "main"
    assert by_name["loop"].results == (Array("s32", ()), Array("f32", (8,)), Array("f32", (8,)))
    assert by_name["loop"].called == "body"
    assert by_name["either"].branches == ("rare", "usual")
    assert by_name["layer_sum"].op_name == "jit(step)/dot_general"
    assert by_name["cache"].operands == ("c", "k")
    assert by_name["w"].results[0].bytes == 4096


def test_text_without_a_program() -> None:
    with pytest.raises(ValueError, match="no entry computation"):
        Module.parse("HloModule nothing")


WHOLE = """\
000: kCommandBuffer [source | sink]
    001: kPartitionId  [source       | next=002 (1)] kPartitionId
    002: kCustomKernel [prev=001 (1) | next=003 (1)] fusion grid: [1, 1, 1]
    009: kConditional  [prev=002 (1) | next=010 (1)]
      false_branch:
        003: kCustomKernel [source | sink] rare grid: [1, 1, 1]
        004: kGemm [source | sink] rare
      true_branch:
        No thunks.
    010: kGemm         [prev=009 (1) | next=011 (1)] kGemm
    011: kAllReduce    [prev=010 (1) | sink        ] kAllReduce
"""
SPLIT = """\
000: kCommandBuffer [source       | next=002 (1)]
    001: kCustomKernel [source | sink] fusion grid: [1, 1, 1]
002: kAsyncStart    [prev=000 (1) | sink        ] stream=computation_stream[0], async_id=2
    003: kCopy [source | sink] kCopy
004: kCustomKernel  [source | sink] alone grid: [1, 1, 1]
005: kAsyncDone     [source       | sink        ] async_id=2
"""


def test_one_command_buffer() -> None:
    launches = parse_launches(WHOLE)
    assert launches == Launches(command_buffers=1, single=0, kernels=2)
    assert launches.whole


def test_split_command_buffers() -> None:
    launches = parse_launches(SPLIT)
    assert launches == Launches(command_buffers=1, single=2, kernels=2)
    assert not launches.whole


def test_list_after_passes_is_preferred(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_launches(tmp_path)
    (tmp_path / "module_1.jit_step.thunk_sequence.txt").write_text("001: kCustomKernel [source | sink] alone")
    assert read_launches(tmp_path) == Launches(command_buffers=0, single=1, kernels=1)
    (tmp_path / "module_1.jit_step.thunk_sequence_after_thunk_passes.txt").write_text(WHOLE)
    assert read_launches(tmp_path).whole
