"""A small model compiled for GPUs that are not here: the properties that a 70B model's speed rests on."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve import compile as command
from jaxserve.aot.build import CompiledStep, Result, compile_for
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder
from jaxserve.config.fields import EngineConfig
from jaxserve.errors import ConfigError
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import count_bytes
from jaxserve.executor.program_bundle import read_manifest
from jaxserve.models.registry import decoder_config, weight_rules
from sharding import EXPERT, make_mesh

LAYERS = 2
# What a decode step on several H100s may launch: counted, not to grow. Each of its halves is one command buffer.
# With cosines and sines, written once a step for the kernel that rotates. So few heads a device are padded for attention.
KERNELS, KERNELS_A_LAYER = 17, 11
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LATENT = {
    key: MODEL[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
}
LATENT |= {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 8,
    "kv_lora_rank": 128,
    "q_lora_rank": 192,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
}


class NotCompiled(Exception):
    """What compiling a step would start with."""


MOE = {
    **MODEL,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

needs_plugin = pytest.mark.skipif(
    find_spec("jax_cuda13_plugin") is None, reason="NOT COMPILED FOR GPUS: jax-cuda13-plugin is missing (Python 3.12 and later)"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(MODEL))
    return str(directory)


def compiled(checkpoint: str, tp: int, variants: str = "greedy", **settings: Any) -> Result:
    seen: list[CompiledStep] = []
    settings = {"max_num_seqs": 8} | settings
    config = TargetConfig(model=checkpoint, target=f"h100:{tp}", tp=tp, variants=variants, **settings)
    result = compile_for(config, seen.append)
    assert tuple(seen) == result.steps
    return result


@needs_plugin
@pytest.mark.parametrize("tp", [8])
def test_decode_step_has_two_all_reduces_a_layer_and_copies_nothing(checkpoint: str, tp: int) -> None:
    result = compiled(checkpoint, tp, rows="4", tokens="none")
    (step,) = result.steps
    assert step.facts.activation_all_reduces == 2 * LAYERS + 1
    assert step.facts.weight_copies == ()
    assert step.facts.cache_copies == ()
    assert step.facts.weights_read_again == ()
    assert step.state_in_place
    assert step.launches is not None
    assert step.launches.whole
    assert step.launches.kernels <= KERNELS + KERNELS_A_LAYER * LAYERS
    assert {entry.kind for entry in step.forward.facts.collectives} == {"all-reduce"}


def check_straight(step: CompiledStep) -> None:
    """Whatever its rows need: each half of a step is one command buffer, and nothing in it makes the host wait."""
    assert list(step.choices) == ["greedy", "random", "logprobs", "processed", "truncated", "penalized", "general"]
    for half in step.halves:
        assert half.launches is not None
        assert half.launches.whole, half.name
        assert half.launches.command_buffers == 1, half.name
        assert (half.facts.sorts, half.facts.conditionals, half.facts.exchanges_in_loops) == ((), 0, 0), half.name


PASSES = 8  # of 3 to 4 bits of the float that is sought
# The largest, what a prefix weighs and which of equals it takes, for top-k and top-p; the tokens that are best.
EXCHANGES = 1 + 2 * (PASSES + 1) + 1


@pytest.mark.extended
@needs_plugin
def test_no_step_sorts_branches_or_waits_and_truncation_takes_few_passes(checkpoint: str) -> None:
    """With a vocabulary as large as real ones, for which XLA would sort by CUB: deviceless, it refuses to compile that."""
    (Path(checkpoint) / "wide").mkdir()
    (Path(checkpoint) / "wide" / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 128_256, "num_hidden_layers": 1}))
    (step,) = compiled(f"{checkpoint}/wide", 8, variants="all", rows="8", tokens="none").steps
    check_straight(step)
    exchanges = {name: sum(entry.count for entry in choice.facts.collectives) for name, choice in step.choices.items()}
    assert exchanges["greedy"] == 1
    assert exchanges["random"] == 2
    assert exchanges["truncated"] <= EXCHANGES


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize(("model", "tp"), [(MODEL, 1), (MOE, 8), (LATENT, 2)], ids=lambda value: str(value)[:30])
def test_no_family_sorts_branches_or_waits(model: dict[str, Any], tp: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**model, "num_hidden_layers": 2}))
    halves = [step.forward for step in compiled(str(tmp_path), tp, rows="8", tokens="256").steps]
    assert len(halves) == 2
    for half in halves:
        assert half.launches is not None
        assert half.launches.whole, half.name
        assert (half.facts.sorts, half.facts.conditionals, half.facts.exchanges_in_loops) == ((), 0, 0), half.name


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize("tp", [2])
def test_a_step_with_matrices_in_int8_exchanges_no_more(checkpoint: str, tp: int) -> None:
    """Numbers are made of bytes inside the products: no matrix is written in another dtype."""
    result, plain = (compiled(checkpoint, tp, rows="4", tokens="none", quantization=name) for name in ("int8", "none"))
    (step,), (same,) = result.steps, plain.steps
    assert step.facts.collectives == same.facts.collectives
    assert step.facts.weight_copies == step.facts.weights_read_again == step.facts.cache_copies == ()
    assert step.launches is not None
    assert same.launches is not None
    # Our own kernel multiplies: rows are made 8, and the parts of sums are added. Tiles do not divide the head's outputs.
    assert step.launches.kernels <= same.launches.kernels + 3 * LAYERS + 1
    assert step.temporary <= same.temporary
    engine = result.config.engine()
    model = decoder_config(MODEL)
    held = count_bytes(model, make_mesh(tp), engine, "bfloat16", "bfloat16")
    assert result.ledger.weights == held.weights < plain.ledger.weights


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize("tp", [2])
def test_a_cache_in_8_bits_is_one_command_buffer_and_is_not_copied(checkpoint: str, tp: int) -> None:
    """With its scales, in decode steps and in steps with prompts; and it takes half the bytes, and 2 for each key and value."""
    result = compiled(checkpoint, tp, rows="4", tokens="64", kv_cache_dtype="fp8")
    assert result.kv_dtype == "float8_e4m3fn"
    for step in result.steps:
        assert step.facts.cache_copies == step.facts.weight_copies == ()
        assert step.state_in_place
        for half in step.halves:
            assert half.launches is not None
            assert half.launches.whole
            assert half.launches.command_buffers == 1
    vectors, dim = 2 * LAYERS * 8 // tp, 64
    assert result.ledger.token == vectors * (dim + 2)


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize(("model", "tp", "rows"), [("llama-3-70b", 8, "64"), (None, 1, "4")])
def test_a_step_in_fp8_multiplies_bytes_and_exchanges_no_more(checkpoint: str, model: str | None, tp: int, rows: str) -> None:
    """Each projection is one FP8 product of cuBLASLt over the weights as they lie; what is exchanged is as in bfloat16.

    A layer has four more kernels: those that scale queries, keys and values and both blocks' results, and one that rounds
    attention's result; all else is done in kernels that there are.
    """
    settings: dict[str, Any] = {"layers": LAYERS, "rows": rows, "tokens": "none", "max_num_seqs": int(rows)}
    result, plain = (compiled(model or checkpoint, tp, quantization=name, **settings) for name in ("fp8", "none"))
    (step,), (same,) = result.steps, plain.steps
    assert step.forward.facts.collectives == same.forward.facts.collectives
    assert step.facts.activation_all_reduces == (2 * LAYERS + 1 if tp > 1 else 0)
    assert step.facts.weight_copies == step.facts.weights_read_again == step.facts.cache_copies == ()
    assert step.forward.facts.products["__cublas$lt$matmul$f8"] == 4 * LAYERS
    assert sum(step.forward.facts.products.values()) == 4 * LAYERS + 1, "and the head's"
    assert step.launches is not None
    assert same.launches is not None
    assert step.launches.whole
    assert step.launches.kernels <= same.launches.kernels + 4 * LAYERS
    assert result.ledger.weights < plain.ledger.weights
    if tp > 1:  # one CPU device holds no FP8
        held = count_bytes(decoder(model or checkpoint, LAYERS), make_mesh(tp), result.config.engine(), "bfloat16", "bfloat16")
        assert result.ledger.weights == held.weights


@pytest.mark.extended
def test_a_step_of_70b_in_fp8_reads_little_more_than_a_byte_a_weight() -> None:
    """Of eight devices: values and scales, and in 16 bits the norms and the head; rows of the table are looked up."""
    known, config = decoder("llama-3-70b", None), EngineConfig.from_settings({"quantization": "fp8"})
    held = count_bytes(known, make_mesh(8), config, "bfloat16", "bfloat16").weights
    table = 2 * known.vocab_size * known.hidden_size // 8
    assert held - table <= 1.02 * 70e9 / 8


@pytest.mark.extended
@needs_plugin
def test_blocks_of_fp8_are_numbers_in_registers_alone(tmp_path: Path, checkpoint: str) -> None:
    """A checkpoint as DeepSeek's: no matrix is written in another dtype, nor anything as large."""
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": method}))
    tensors: dict[str, np.ndarray] = {}
    for source in (source for rule in weight_rules(decoder_config(MODEL)) for source in rule.sources):
        if "_proj" in source.name:
            tensors[source.name] = np.zeros(source.shape, jnp.dtype("float8_e4m3fn"))
            tensors[f"{source.name}_scale_inv"] = np.ones([size // 128 for size in source.shape], np.float32)
        else:
            tensors[source.name] = np.zeros(source.shape, jnp.dtype("bfloat16"))
    save_file(tensors, tmp_path / "model.safetensors")
    settings: dict[str, Any] = {"rows": "4", "tokens": "64"}
    result, plain = compiled(str(tmp_path), 2, **settings), compiled(checkpoint, 2, **settings)
    assert result.ledger.weights < 0.7 * plain.ledger.weights
    for step, same in zip(result.steps, plain.steps, strict=True):
        assert step.forward.facts.collectives == same.forward.facts.collectives
        assert step.facts.weight_copies == step.facts.weights_read_again == step.facts.cache_copies == ()
        assert step.launches is not None
        assert step.launches.whole


@pytest.mark.extended
@needs_plugin
def test_attention_to_chosen_tokens_is_compiled_without_kernels(tmp_path: Path) -> None:
    """In loops, of prompts and decodes: the cache stays where it is, and devices exchange what they do in any layer."""
    indexer = {"index_n_heads": 16, "index_head_dim": 64, "index_topk": 64}
    (tmp_path / "config.json").write_text(json.dumps({**LATENT, **indexer, "architectures": ["DeepseekV32ForCausalLM"]}))
    result = compiled(str(tmp_path), 2, rows="4", tokens="64")
    assert {step.tokens for step in result.steps} == {4, 64}
    for step in result.steps:
        assert [(each.kind, each.count) for each in step.forward.facts.collectives] == [("all-reduce", 2 * LAYERS + 1)]
        assert step.facts.cache_copies == step.facts.weight_copies == ()
        assert step.state_in_place


@needs_plugin
def test_fp8_is_refused_for_gpus_that_do_not_multiply_it(checkpoint: str) -> None:
    config = TargetConfig(model=checkpoint, target="a100:1", rows="8", max_num_seqs=8, quantization="fp8")
    with pytest.raises(ConfigError, match=r"'fp8' needs GPUs of compute capability 8\.9 or later, not gpu of .* 8\.0$"):
        compile_for(config, print)


@needs_plugin
@pytest.mark.extended  # half a minute; tests/integration/models/test_tensor_parallel.py divides the same layers for CPUs
def test_latent_attention_and_experts_on_eight_gpus(tmp_path: Path) -> None:
    """As for other models: two all-reduces a layer and nothing else, and neither weights nor the cache are copied.

    Rows of 192 tokens have a part of the step of their own, with keys and values made of their latents.
    """
    (tmp_path / "config.json").write_text(json.dumps(LATENT | {"vocab_size": 8000}))
    (step,) = compiled(str(tmp_path), 8, ep=2, rows="none", tokens="256").steps
    assert step.facts.activation_all_reduces == 2 * LAYERS + 1
    assert step.facts.weight_copies == step.facts.cache_copies == ()
    assert step.state_in_place
    assert {entry.kind for entry in step.forward.facts.collectives} == {"all-reduce"}


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize(("rows", "tokens", "kernels"), [("4", "none", 55), ("none", "64", 59)], ids=["decode", "prompts"])
def test_latent_attention_is_kernels_and_no_loop(tmp_path: Path, rows: str, tokens: str, kernels: int) -> None:
    """Of all kernels of a step of two dense layers one a layer is attention; a loop of them took 20 more, and 64 with prompts."""
    (tmp_path / "config.json").write_text(json.dumps(LATENT | {"first_k_dense_replace": LAYERS}))
    (step,) = compiled(str(tmp_path), 1, rows=rows, tokens=tokens).steps
    assert step.launches is not None
    assert step.launches.whole
    assert step.launches.kernels <= kernels


@pytest.mark.extended
@needs_plugin
@pytest.mark.parametrize(("ep", "groups"), [(None, 2), (1, 1)])
def test_experts_too_narrow_to_divide_are_shared_by_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ep: int | None, groups: int
) -> None:
    """Half of an expert has 32 columns; asked for all the same, it is said to be slow."""

    def refuse(lowering: Lowering, *_: Any, **__: Any) -> None:
        assert lowering.mesh.shape[EXPERT] == groups
        raise NotCompiled

    monkeypatch.setattr("jaxserve.aot.build._compile_half", refuse)
    (tmp_path / "config.json").write_text(json.dumps(LATENT | {"moe_intermediate_size": 64}))
    with pytest.raises(NotCompiled):
        compiled(str(tmp_path), 2, ep=ep, rows="4", tokens="none")
    slow = (
        "slow on gpu of compute capability 9.0, for want of a kernel: products of experts "
        "(not in mosaic_gpu: the width of rows must be a multiple of 64, not 32)"
    )
    said = [record.message for record in caplog.records if record.name == "jaxserve.aot.build"]
    assert said == ([] if ep is None else [slow])


@pytest.mark.extended
@needs_plugin
def test_step_with_prompts_on_one_gpu_has_no_collectives(checkpoint: str) -> None:
    result = compiled(checkpoint, 1, rows="none", tokens="64")
    (step,) = result.steps
    assert (step.tokens, step.rows) == (64, 8)
    assert step.facts.collectives == ()
    assert step.facts.weight_copies == step.facts.cache_copies == ()
    assert step.state_in_place
    assert result.ledger.temporary == step.temporary
    assert result.ledger.tokens * result.ledger.token <= result.ledger.cache


@needs_plugin
def test_a_model_that_does_not_fit_is_refused_with_what_is_missing() -> None:
    config = TargetConfig(model="llama-3-70b", target="h100:8", tp=1)
    with pytest.raises(ConfigError, match=r"h100:8 is too small: 69\.\d+ GB short on each GPU.* weights take 141\.11"):
        compile_for(config, print)


@needs_plugin
def test_more_devices_than_the_target_has() -> None:
    with pytest.raises(ConfigError, match="tp is 8, but the target has 4 devices"):
        compile_for(TargetConfig(model="llama-3-8b", target="h100:4", tp=8), print)


def test_a_variant_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="variants names greed; there are general"):
        compile_for(TargetConfig(target="cpu", layers=1, num_pages=16, variants="general,greed"), print)


def test_groups_of_devices_for_experts_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="expert_parallel_size 2: LlamaForCausalLM has no experts"):
        compile_for(TargetConfig(model="llama-3-8b", target="cpu:2", tp=2, ep=2), print)


def test_context_longer_than_the_model_was_made_for() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 9000 tokens, but the model was made for 8192"):
        compile_for(TargetConfig(model="llama-3-8b", target="h100:1", max_model_len=9000), print)


def test_the_door_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["llama-3-8b", "--target", "v100:1"]) == 2
    assert capsys.readouterr().err == (
        "jaxserve: target must be a GPU and how many, such as h100:8, got 'v100:1'; known GPUs are a100, h100, h200, b200; "
        "or cpu, for this machine's own\n"
    )


@needs_plugin
def test_programs_of_a_gpu_are_saved_with_what_they_are_for(checkpoint: str, tmp_path: Path) -> None:
    measured, programs = tmp_path / "measured", tmp_path / "programs"
    measured.mkdir()
    (measured / "kernel.pb").write_bytes(b"of a GPU")
    of_model: dict[str, Any] = {"model": checkpoint, "layers": 1, "max_num_seqs": 8, "num_pages": 99}
    of_model |= {"rows": "4", "tokens": "none", "variants": "greedy,random"}
    config = TargetConfig(**of_model, target="h100:2", tp=2, autotune_results=str(measured))
    result = compile_for(config, lambda step: None, programs)
    assert result.num_pages == 99
    assert result.saved is not None
    others = ("prompt_logprobs", "load_row", "put_table", "copy_pages", "expert_tokens")
    assert result.saved.names == ("choose_4_greedy", "choose_4_random", "forward_4x4", *others)
    assert result.steps[0].launches is None, "a dump's path would be in the program"
    manifest = read_manifest(programs)
    assert manifest is not None
    assert (manifest.num_pages, sorted(manifest.programs)) == (99, sorted(result.saved.names))
    expected = {
        "platform": "gpu",
        "device": "NVIDIA H100 80GB HBM3",
        "compute_capability": "9.0",
        "core_count": "132",
        "tensor_parallel_size": "2",
        "num_pages": "99",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "max_num_seqs": "8",
        "max_num_batched_tokens": "2048",
        "max_model_len": "256",
    }
    assert {name: manifest.engine[name] for name in expected} == expected
    assert "xla_gpu_enable_command_buffer" in manifest.engine["compiler_options"]
    beside = [path.read_bytes() for path in (programs / "autotune_results").iterdir()]
    assert beside == [b"of a GPU"]
    assert result.saved.bytes == sum(file.stat().st_size for file in programs.glob("*.program"))


@needs_plugin
def test_more_pages_than_memory_has_are_refused() -> None:
    config = TargetConfig(model="llama-3-8b", target="h100:1", num_pages=10**6)
    with pytest.raises(ConfigError, match=r"too small: .* GB short .* and a KV cache of 16000000 tokens 2097\.15"):
        compile_for(config, print)


def test_this_machines_cpus_are_a_target_too(checkpoint: str) -> None:
    """With the pages that an engine would choose here: all that two sequences could ever use."""
    config = TargetConfig(
        model=checkpoint, target="cpu:2", tp=2, max_num_seqs=2, rows="2", tokens="none", variants="greedy", dtype="float32"
    )
    result = compile_for(config, lambda step: None)
    assert (result.dtype, result.num_pages, result.on_gpu) == ("float32", 2 * 256 // 16 + 1, False)
    (step,) = result.steps
    assert step.facts.activation_all_reduces == 2 * LAYERS + 1
    assert step.facts.weight_copies == step.facts.cache_copies == ()
    assert step.state_in_place
    assert step.launches is None
    assert result.saved is None


def test_more_cpus_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"there are 8 CPU devices, not 9 \(XLA_FLAGS=--xla_force_host_platform_device_count=9"):
        compile_for(TargetConfig(target="cpu:9", tp=9), print)


def test_steps_that_the_engine_does_not_have_are_not_saved(checkpoint: str, tmp_path: Path) -> None:
    config = TargetConfig(model=checkpoint, target="cpu", max_num_seqs=4, max_num_batched_tokens=64, rows="2,3", tokens="48")
    with pytest.raises(ConfigError, match=r"no step of 3 x 3, 48 x 4 \(tokens x rows\); it has 2 x 2, 4 x 4, 64 x 4$"):
        compile_for(config, print, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_door_saves_programs_of_cpus(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--max-num-seqs", "2", "--max-num-batched-tokens", "8", "--rows", "all", "--tokens", "none", "--layers", "1"]
    assert command.main([checkpoint, "--target", "cpu", *shapes, "--output", str(tmp_path / "programs")]) == 0
    printed, _ = capsys.readouterr()
    assert "this machine's CPU x1" in printed
    assert "the programs' KV cache: 33 pages of 16 tokens" in printed
    assert "saved 7 programs" in printed
    assert "not counted" in printed
    assert "tokens that the KV cache holds" not in printed
    assert (tmp_path / "programs" / "forward_2x2.program").is_file()


@needs_plugin
def test_the_door_prints_a_table_and_writes_json(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    shapes = ["--rows", "2", "--tokens", "none", "--layers", "1", "--variants", "greedy,random"]
    assert command.main([checkpoint, "--target", "h200:1", *shapes, "--json", str(file)]) == 0
    printed, told = capsys.readouterr()
    assert "1 layers" in printed
    assert "NVIDIA H200 x1" in printed
    assert "compiled 2 x 2 (tokens x rows)" in told
    written = json.loads(file.read_text())
    assert written["config"]["target"] == "h200:1"
    assert written["num_layers"] == 1
    assert [step["rows"] for step in written["steps"]] == [2]
    assert written["ledger"]["memory"] == 150_109_106_995


@pytest.mark.extended
@needs_plugin
def test_a_step_that_verifies_drafts_exchanges_as_often_as_one_that_decodes(checkpoint: str) -> None:
    drafts = '{"method": "ngram", "num_speculative_tokens": 4}'
    plain, verifying = compiled(checkpoint, 2, rows="4", tokens="none", layers=1, speculative_config=drafts).steps
    assert (plain.tokens, plain.drafts, verifying.tokens, verifying.rows, verifying.drafts) == (4, 0, 20, 4, 4)
    assert verifying.facts.activation_all_reduces == plain.facts.activation_all_reduces == 3
    assert sum(one.count for one in verifying.facts.collectives) == sum(one.count for one in plain.facts.collectives)
    assert verifying.facts.weight_copies == verifying.facts.cache_copies == ()
    assert verifying.state_in_place
    assert verifying.launches is not None
    assert verifying.launches.whole
