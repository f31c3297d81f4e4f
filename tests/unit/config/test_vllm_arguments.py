"""Command lines for vLLM: what means the same is taken, all else is refused by name."""

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from jaxserve.config.fields import EngineConfig
from jaxserve.config.server import ServerConfig
from jaxserve.config.start import SourceConfig, read_start
from jaxserve.config.vllm_arguments import as_ours
from jaxserve.config.vllm_flags import BARE, VLLM_FLAGS
from jaxserve.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
OURS = {
    "--" + item.name.replace("_", "-"): item
    for config in (*get_type_hints(EngineConfig).values(), ServerConfig, SourceConfig)
    for item in fields(config)
}
NAMES = [(theirs, name) for theirs in VLLM_FLAGS for name in theirs.names]


def start(*arguments):
    return read_start(arguments, "prog", "")


def test_a_command_line_of_theirs_is_taken():
    found = start(
        *("--model", "/models/a", "--served-model-name", "a", "b", "--gpu-memory-utilization", "0.5", "--max_model_len=100"),
        *("--no-enable-prefix-caching", "-tp", "2", "--block-size", "32", "--dtype", "half", "--enable-chunked-prefill"),
        *(
            "--trust-remote-code",
            "--swap-space",
            "4",
            "--kv-cache-dtype=fp8_e4m3",
            "--calculate-kv-scales",
            "--ssl-certfile",
            "c",
            "--ssl-keyfile=k",
        ),
        *("--disable-log-requests", "--shutdown-timeout", "7", "--generation-config", "vllm", "--enable-chunked-prefill=True"),
        "--enforce-eager",
    )
    model, cache = found.engine.model, found.engine.cache
    assert (model.model, model.served_model_name, model.dtype, model.max_model_len) == ("/models/a", ("a", "b"), "float16", 100)
    assert cache.kv_cache_dtype == "fp8_e4m3"
    assert (cache.gpu_memory_fraction, cache.prefix_caching, cache.page_size, cache.swap_space) == (0.5, False, 32, 4.0)
    assert (found.engine.parallel.tensor_parallel_size, model.generation_config) == (2, "none")
    assert found.engine.compile.before_ready == "fewest"
    assert (found.server.tls_cert, found.server.tls_key, found.server.drain_timeout) == ("c", "k", 7.0)
    assert [note.partition(" changes")[0] for note in found.notes] == [
        *("--enable-chunked-prefill", "--trust-remote-code", "--calculate-kv-scales"),
        *("--disable-log-requests", "--enable-chunked-prefill True"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--preemption-mode", "swap"], "--preemption-mode swap of vLLM is not taken: a preempted sequence is computed again"),
        (["--kv-cache-dtype", "fp8_e5m2"], "argument --kv-cache-dtype: invalid choice: 'fp8_e5m2' (choose from"),
        (["--cuda-graph-sizes", "4"], "--cuda-graph-sizes of vLLM is not taken: XLA compiles steps for the shapes"),
        (["--lora_dtype"], "--lora-dtype of vLLM is not taken: adapters have the dtype of the weights"),
        (["--enable-chunked-prefill", "false"], "--enable-chunked-prefill false of vLLM is not taken"),
        (["--hf-token=secret"], "--hf-token of vLLM is not taken: nothing is downloaded"),
        (["--download-dir", "/tmp"], "--download-dir of vLLM is not taken: nothing is downloaded"),
        (["--gpu-memory-utilization", "2"], "gpu_memory_fraction must be in"),
        (["--gpu-memory-utilization"], "argument --gpu-memory-fraction: expected one argument"),
        (["--enable-prefix-caching=no"], "argument --prefix-caching/--no-prefix-caching: ignored explicit argument 'no'"),
        (["--max-num-seq", "4"], "unrecognized arguments: --max-num-seq (did you mean --max-num-seqs?)"),
    ],
)
def test_what_is_not_here_is_refused_in_one_line(arguments, says):
    with pytest.raises(ConfigError) as refused:
        start(*arguments)
    assert refused.value.message.startswith(says)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(("theirs", "name"), NAMES, ids=[name for _, name in NAMES])
def test_every_flag_is_ours_or_has_a_reason(theirs, name):
    if theirs.ours:
        flag, _, value = theirs.ours.partition("=")
        item = OURS[flag.replace("--no-", "--", 1)]
        assert isinstance(item.default, bool) == ("=" not in theirs.ours)
        (argument,), notes = as_ours([name, *(["7"] if theirs.ours.endswith("=") else [])])
        assert argument == theirs.ours if value else argument.partition("=")[0] == flag
        assert not notes
        assert name not in OURS or theirs.values
        return
    assert theirs.why
    assert name not in OURS, "one of our own flags is hidden"
    for value in theirs.same:
        taken, (note,) = as_ours([name] if value == BARE else [name, value])
        assert not taken
        assert note.endswith(theirs.why)
    if BARE not in theirs.same:
        with pytest.raises(ConfigError, match="of vLLM is not taken"):
            as_ours([name, "surely-not-this"])


def test_no_flag_is_in_the_table_twice():
    assert len({name for _, name in NAMES}) == len(NAMES)


def test_what_follows_two_dashes_is_left_alone():
    assert as_ours(["--", "--preemption-mode"]) == (["--", "--preemption-mode"], [])


def row(theirs):
    names = ", ".join(f"`{name}`" for name in theirs.names)
    words = "".join(f"; `{word}` is `{ours}`" for word, ours in theirs.values.items())
    if theirs.ours:
        return f"| {names} | `{theirs.ours.rstrip('=')}`{words} |"
    if not theirs.same:
        return f"| {names} | no: {theirs.why} |"
    with_values = "" if BARE in theirs.same else f" (with {' or '.join(theirs.same)})"
    return f"| {names}{with_values} | changes nothing: {theirs.why} |"


def test_the_documented_table_is_this_one():
    documented = [line for line in DOCS.read_text().splitlines() if line.startswith("| `-")]
    assert documented == [row(theirs) for theirs in VLLM_FLAGS]
