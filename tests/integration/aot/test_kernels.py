"""How many kernels a layer of a decode step is, at the widths of real models, and how many arrays a step takes."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from jaxserve.aot.facts import read_facts
from jaxserve.aot.hlo import Instruction, Module
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.aot.thunks import Launches, read_launches
from jaxserve.config.fields import Quantization
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.program_spec import ProgramSpec
from jaxserve.step.buckets import Bucket
from sharding import make_mesh

needs_plugin = pytest.mark.skipif(
    find_spec("jax_cuda13_plugin") is None, reason="NOT COMPILED FOR GPUS: jax-cuda13-plugin is missing (Python 3.12 and later)"
)
ROWS, PRODUCTS = 32, 4
OPTIONS = ExecutorOptions(
    max_num_seqs=ROWS,
    max_num_batched_tokens=512,
    max_model_len=4096,
    num_pages=4096,
    page_size=16,
    dtype="bfloat16",
    kv_dtype="bfloat16",
)


def forward(model: str, layers: int | None, gpus: int, options: ExecutorOptions = OPTIONS) -> ProgramSpec:
    mesh = make_mesh(gpus, Target.parse(f"h100:{gpus}").devices())
    return Lowering(decoder(model, layers), mesh, options).forward(Bucket(ROWS, ROWS))


def compiled(spec: ProgramSpec, directory: Path) -> tuple[Launches, Module]:
    with nothing_kept():
        program = spec.compile({"xla_dump_to": str(directory)})
    return read_launches(directory), Module.parse(program.as_text())


# Four products; two norms, which add what an all-reduce summed (on one GPU the product before adds); the activation. On several
# GPUs every second layer also writes the sum down. Attention is apart, which turns queries and keys and writes keys and values.
@needs_plugin
@pytest.mark.parametrize(("model", "gpus", "kernels", "of_attention"), [("llama-3-8b", 1, 7, 2), ("llama-3-70b", 8, 7.5, 2)])
def test_kernels_of_a_layer(model: str, gpus: int, kernels: float, of_attention: int, tmp_path: Path) -> None:
    """Those of two layers are what six layers have more than four: what all share is in both, and the first fuse otherwise."""
    (four, _), (six, module) = (compiled(forward(model, layers, gpus), tmp_path / str(layers)) for layers in (4, 6))
    assert four.whole
    assert six.whole
    assert (six.kernels - four.kernels) / 2 <= kernels + of_attention
    lines = module.computations[module.entry]
    products = [line for line in lines if line.opcode == "custom-call" and "dot_general" in line.op_name]
    assert len(products) == PRODUCTS * 6 + 1, "and the head"
    assert not [line for line in lines if line.opcode in ("dot", "copy", "slice") and line.results[0].elements > 0]


# Two groups of layers, full and windowed: each has page tables, whose rows are no multiple of 256 bytes.
@needs_plugin
@pytest.mark.parametrize("bucket", [Bucket(512, ROWS), Bucket(1, 1)], ids=str)
def test_mosaic_kernels_are_handed_arrays_at_multiples_of_256_bytes(bucket: Bucket) -> None:
    """XLA hands a kernel a slice of an array where it lies; one that begins elsewhere is refused when the step runs."""
    mesh = make_mesh(1, Target.parse("h100:1").devices())
    with nothing_kept():
        spec = Lowering(decoder("gpt-oss-120b", 2), mesh, replace(OPTIONS, max_model_len=4080)).forward(bucket)
        text = spec.compile().as_text()
    assert text.count('custom_call_target="mosaic_gpu_v2"') >= 8
    fusions = re.findall(r"^%dynamic-slice-fusion.*?^}", text, re.M | re.S)
    assert [start for body in fusions if "mosaic_gpu_v2" in body for start in slice_starts(body) if start % 256] == []


def slice_starts(body: str) -> list[int]:
    """The bytes before the first element of each slice that a fusion takes, of numbers of 32 bits."""
    shapes = dict(re.findall(r"(%\S+) = s32\[([\d,]+)\]", body))
    starts = []
    for operand, bounds in re.findall(r"slice\((%\S+)\), slice={([^}]*)}", body):
        place = 0
        for size, start in zip(shapes[operand].split(","), re.findall(r"\[(\d+):", bounds), strict=True):
            place = place * int(size) + int(start)
        starts.append(4 * place)
    return starts


def test_where_a_slice_begins() -> None:
    body = """%dynamic-slice-fusion (p0: s32[2,32,255]) -> s32[32,255] {
      %p0 = s32[2,32,255]{2,1,0} parameter(0)
      %slice.1 = s32[1,32,255]{2,1,0} slice(%p0), slice={[1:2], [0:32], [0:255]}, metadata={op_name="x"}"""
    assert slice_starts(body) == [4 * 32 * 255]


@needs_plugin
@pytest.mark.parametrize(("dtype", "asked"), [("float32", True), ("bfloat16", False)])
def test_products_in_float32_are_of_float32(dtype: str, asked: bool) -> None:
    """And not of TensorFloat-32, which a GPU takes by itself."""
    mesh = make_mesh(1, Target.parse("h100:1").devices())
    options = replace(OPTIONS, dtype=dtype, kv_dtype=dtype)
    with nothing_kept():
        text = Lowering(decoder("llama-3-8b", 1), mesh, options).forward(Bucket(ROWS, ROWS)).compile().as_text()
    products = [line for line in text.splitlines() if "cublas$lt$matmul" in line]
    assert len(products) >= PRODUCTS + 1, "and, in float32, those of attention"
    assert all(('"operand_precision":["HIGHEST","HIGHEST"]' in line) == asked for line in products)


# The four products; two norms, which add, and round what they make; the gate, which rounds too; attention as above, and what
# rounds its result; three that scale, of which those of the blocks' results come before they are exchanged or added.
@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize(("model", "gpus"), [("llama-3-8b", 1), ("llama-3-70b", 8)])
def test_kernels_of_a_layer_in_fp8(model: str, gpus: int, tmp_path: Path) -> None:
    options = replace(OPTIONS, quantization="fp8")
    (two, _), (four, module) = (compiled(forward(model, layers, gpus, options), tmp_path / str(layers)) for layers in (2, 4))
    assert four.whole
    assert (four.kernels - two.kernels) / 2 <= 4 + 2 + 1 + 2 + 1 + 3
    lines = module.computations[module.entry]
    products = [line for line in lines if line.opcode == "custom-call" and "cublas$lt$matmul$f8" in line.target]
    assert len(products) == PRODUCTS * 4
    assert not [line for line in lines if line.opcode in ("dot", "copy", "slice", "pad") and line.results[0].elements > 0]


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_matrices_are_widened_in_registers(quantization: Quantization, tmp_path: Path) -> None:
    """Products are our kernel's, no matrix is written again, and sums of parts of the inputs are all that is added to a layer."""
    options = replace(OPTIONS, quantization=quantization)
    (one, _), (two, module) = (compiled(forward("llama-3-8b", layers, 1, options), tmp_path / str(layers)) for layers in (1, 2))
    assert two.whole
    assert two.kernels - one.kernels <= 10 + 4  # those of bfloat16, see above
    lines = module.computations[module.entry]
    products = [line for line in lines if line.opcode == "custom-call" and "dot_general" in line.op_name]
    assert not products
    assert sum("quantized_matmul" in line.op_name for line in lines if line.opcode == "custom-call") == PRODUCTS * 2 + 1
    facts = read_facts(module, tokens=ROWS, hidden_size=4096, cache_elements=(1 << 60,))
    assert facts.weight_copies == ()
    assert facts.weights_read_again == ()


@pytest.mark.extended
@needs_plugin
def test_a_product_adds_its_bias(tmp_path: Path) -> None:
    """So queries, keys and values are slices of a product in models with a bias too."""
    _, module = compiled(forward("qwen2.5-7b", 2, 1), tmp_path)
    lines = {line.name: line for line in module.computations[module.entry]}

    def attends(line: Instruction) -> bool:
        """Be it in a fusion with the slice that the page table is of the batch."""
        calls = (line,) if line.called is None else module.computations[line.called]
        return any(call.opcode == "custom-call" and "paged_decode" in call.op_name for call in calls)

    layers = [line for line in lines.values() if attends(line)]
    assert len(layers) == 2
    for attention in layers:
        heads = (ROWS, 28 + 2 * 4, 128)
        (packed,) = (lines[operand] for operand in attention.operands if lines[operand].results[0].sizes == heads)
        while packed.opcode in ("bitcast", "get-tuple-element"):
            packed = lines[packed.operands[0]]
        assert packed.opcode == "custom-call"
        assert "cublas" in packed.target


@needs_plugin
def test_arrays_of_a_70b_step_on_eight_gpus() -> None:
    """Four a layer; embedding, head and norms; and six of the step itself. Each costs host time at every step."""
    arrays = jax.tree.leaves(forward("llama-3-70b", None, 8).arguments)
    assert len(arrays) == 4 * 80 + 3 + 6 <= 330
