"""What "auto" becomes, from facts about model and devices."""

from dataclasses import replace

import pytest

from jaxserve.config.fields import (
    CacheConfig,
    CompileConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    RecordConfig,
    SchedulerConfig,
)
from jaxserve.config.resolve import (
    CPU_CACHE_BYTES,
    SPARE_BYTES,
    WORKSPACE_BYTES,
    DeviceBytes,
    DeviceFacts,
    ModelFacts,
    dump_directory,
)
from jaxserve.config.resolve import resolve as resolve_with
from jaxserve.config.speculative import SpeculationConfig
from jaxserve.errors import ConfigError

GIB = 2**30
MODEL = ModelFacts(name="tiny", dtype="bfloat16", max_position_embeddings=2048)
WEIGHTS, KV_VALUES, STATE = 10**6, 1024, 5000  # numbers, numbers a token, bytes
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "int8": 1}
CPU = DeviceFacts(platform="cpu", count=1, memory=64 * GIB, slow_bfloat16_scatter=False)
H100 = DeviceFacts(platform="gpu", count=1, memory=80 * GIB, slow_bfloat16_scatter=False)


def resolve(settings, model, devices, *, weights=WEIGHTS, values=KV_VALUES, saved_pages=None):
    """Resolve for a model of so many weights and of so many numbers a token in the cache, on each device."""

    def count_bytes(dtype, kv_dtype):
        page = settings.cache.page_size * values * BYTES[kv_dtype]
        return DeviceBytes(weights=weights * BYTES[dtype], state=STATE, page=page)

    return resolve_with(settings, model, devices, count_bytes, saved_pages)


def config(*, model=None, cache=None, scheduler=None, compile=None, **more):
    return EngineConfig(
        model=ModelConfig(**model or {}),
        cache=CacheConfig(**cache or {}),
        scheduler=SchedulerConfig(**scheduler or {}),
        compile=CompileConfig(**compile or {}),
        **more,
    )


@pytest.mark.parametrize(
    ("asked", "stored", "slow", "dtype", "kv_dtype"),
    [
        ("auto", "bfloat16", False, "bfloat16", "bfloat16"),
        ("auto", "float32", False, "float32", "float32"),
        ("float32", "bfloat16", False, "float32", "float32"),
        ("float16", "float32", False, "float16", "float16"),
        ("auto", "bfloat16", True, "bfloat16", "float32"),
        ("float32", "bfloat16", True, "float32", "float32"),
        ("auto", "float16", True, "float16", "float16"),
    ],
)
def test_dtypes(asked, stored, slow, dtype, kv_dtype):
    facts = replace(CPU, slow_bfloat16_scatter=slow)
    resolved = resolve(config(model={"dtype": asked}), replace(MODEL, dtype=stored), facts)
    assert (resolved.dtype, resolved.kv_dtype) == (dtype, kv_dtype)


@pytest.mark.parametrize("devices", [CPU, H100, replace(CPU, slow_bfloat16_scatter=True)])
@pytest.mark.parametrize(
    ("asked", "kv_dtype"),
    [("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn"), ("int8", "int8"), ("float32", "float32"), ("bfloat16", "bfloat16")],
)
def test_the_cache_has_the_dtype_that_was_asked_for(asked, kv_dtype, devices):
    resolved = resolve(config(cache={"kv_cache_dtype": asked}), MODEL, devices)
    assert (resolved.dtype, resolved.kv_dtype) == ("bfloat16", kv_dtype)


def test_a_dtype_that_no_cache_has():
    with pytest.raises(ConfigError, match=r"kv_cache_dtype must be one of .*'fp8', .*'int8', got 'fp8_e5m2'"):
        config(cache={"kv_cache_dtype": "fp8_e5m2"})


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_bytes_follow_the_dtypes(dtype, size):
    resolved = resolve(config(model={"dtype": dtype}, cache={"num_pages": 200}), MODEL, CPU)
    assert resolved.device_bytes.weights == WEIGHTS * size
    assert resolved.cache_bytes == 200 * 16 * KV_VALUES * size


def test_a_cache_in_float32_for_bfloat16_weights_takes_twice_the_bytes():
    resolved = resolve(config(cache={"num_pages": 200}), MODEL, replace(CPU, slow_bfloat16_scatter=True))
    assert resolved.device_bytes.weights == WEIGHTS * 2
    assert resolved.cache_bytes == 200 * 16 * KV_VALUES * 4


@pytest.mark.parametrize(
    ("devices", "asked", "seconds"),
    [(CPU, None, 0.4), (H100, None, 0.05), (CPU, 0.0, 0.0), (CPU, 50.0, 0.05), (H100, 200.0, 0.2)],
)
def test_time_between_tokens(devices, asked, seconds):
    assert resolve(config(scheduler={"itl_target_ms": asked}), MODEL, devices).scheduler.itl_target == seconds


def test_names():
    assert resolve(config(), MODEL, CPU).served_model_names == ("tiny",)
    assert resolve(config(model={"served_model_name": ["mine", "yours"]}), MODEL, CPU).served_model_names == ("mine", "yours")


def test_max_model_len():
    assert resolve(config(), MODEL, CPU).max_model_len == 2048
    assert resolve(config(model={"max_model_len": 100}), MODEL, CPU).max_model_len == 100
    assert resolve(config(model={"max_model_len": 2048}), MODEL, CPU).max_model_len == 2048
    with pytest.raises(ConfigError, match="max_model_len is 2049 tokens, but the model was made for 2048") as refused:
        resolve(config(model={"max_model_len": 2049}), MODEL, CPU)
    assert refused.value.param == "max_model_len"


def test_a_cache_smaller_than_the_context_asked_for_is_refused():
    with pytest.raises(ConfigError, match=r"max_model_len is 100 tokens, but the KV cache holds 96 \(6 pages of 16\)") as refused:
        resolve(config(model={"max_model_len": 100}, cache={"num_pages": 7}), MODEL, CPU)
    assert refused.value.param == "max_model_len"
    assert resolve(config(model={"max_model_len": 96}, cache={"num_pages": 7}), MODEL, CPU).max_model_len == 96


def test_a_cache_smaller_than_the_models_context_shortens_it():
    assert resolve(config(cache={"num_pages": 7}), MODEL, CPU).max_model_len == 96


def test_chunks_are_whole_pages():
    settings = config(cache={"page_size": 24, "num_pages": 40})
    assert resolve(settings, replace(MODEL, chunk=48, windows=(48, None)), CPU).num_pages
    with pytest.raises(ConfigError, match="page_size is 24, and layers attend within chunks of 8192 tokens") as error:
        resolve(settings, replace(MODEL, chunk=8192), CPU)
    assert error.value.param == "page_size"


def test_windows_let_a_small_cache_hold_a_long_sequence():
    """A window of 20 tokens and a step of 40 lie in 5 pages of 16 at most."""
    settings = config(cache={"num_pages": 6}, scheduler={"max_num_batched_tokens": 40, "max_num_seqs": 4})
    assert resolve(settings, replace(MODEL, windows=(20,)), CPU).max_model_len == 2048
    assert resolve(settings, replace(MODEL, windows=(37,)), CPU).max_model_len == 80
    assert resolve(settings, replace(MODEL, windows=(None,)), CPU).max_model_len == 80
    assert resolve(settings, replace(MODEL, windows=(None, 20)), CPU).max_model_len == 32


def test_a_cpu_gets_the_pages_that_could_ever_be_used():
    settings = config(model={"max_model_len": 100}, scheduler={"max_num_seqs": 3})
    assert resolve(settings, MODEL, CPU).num_pages == 3 * 7 + 1
    assert resolve(settings, replace(MODEL, windows=(None, 20, 20)), CPU).num_pages == 3 * 19 + 1


def test_a_cpu_gives_its_cache_at_most_a_share_of_its_memory():
    page = 16 * KV_VALUES * 2
    many = config(scheduler={"max_num_seqs": 512})
    assert resolve(many, MODEL, CPU, values=2**17).num_pages == CPU_CACHE_BYTES // (16 * 2**17 * 2)
    little = replace(CPU, memory=20 * page + WEIGHTS * 2 + STATE)
    resolved = resolve(config(), MODEL, little)
    assert resolved.num_pages == 10
    assert resolved.max_model_len == 9 * 16
    assert resolve(config(), MODEL, replace(little, memory=little.memory - 1)).num_pages == 9


def test_virtual_devices_share_the_memory_of_the_host():
    page = 16 * KV_VALUES * 2
    two = replace(CPU, count=2, memory=2 * (20 * page + WEIGHTS * 2 + STATE))
    assert resolve(config(), MODEL, two).num_pages == 10
    assert resolve(config(), MODEL, replace(two, memory=two.memory - 1)).num_pages == 9


def test_memory_asked_for_limits_the_cache_on_any_device():
    page = 16 * KV_VALUES * 2
    settings = config(cache={"kv_cache_memory_gib": 5 * page / GIB})
    for devices in (CPU, H100):
        assert resolve(settings, MODEL, devices).num_pages == 5


@pytest.mark.parametrize("tensor", [1, 8])
def test_a_gpu_gives_its_cache_what_is_left(tensor):
    weights, values = 70 * 10**9 // 8, 2 * 80 * 8 * 128 // tensor
    resolved = resolve(config(), MODEL, replace(H100, count=tensor), weights=weights, values=values)
    page = 16 * values * 2
    left = 80 * GIB - weights * 2 - STATE - WORKSPACE_BYTES
    assert resolved.num_pages == left // page
    assert resolved.device_bytes.weights + resolved.cache_bytes + STATE + WORKSPACE_BYTES <= 80 * GIB
    assert resolved.num_pages * page > left - page


def test_the_cache_of_saved_programs_is_taken_where_memory_has_it():
    page = 16 * KV_VALUES * 2
    own = resolve(config(), MODEL, H100).num_pages
    most = (80 * GIB - WEIGHTS * 2 - STATE - WORKSPACE_BYTES + SPARE_BYTES) // page
    for saved, taken in ((own - 1000, own - 1000), (most, most), (most + 1, own), (1, own)):
        assert resolve(config(), MODEL, H100, saved_pages=saved).num_pages == taken
    assert own < most
    assert resolve(config(cache={"num_pages": 200}), MODEL, H100, saved_pages=300).num_pages == 200
    little = replace(CPU, memory=20 * page + WEIGHTS * 2 + STATE)
    for saved, taken in ((10, 10), (11, 10), (9, 9)):
        assert resolve(config(), MODEL, little, saved_pages=saved).num_pages == taken


@pytest.mark.parametrize(
    ("devices", "asked", "first"), [(CPU, "auto", False), (H100, "auto", True), (CPU, "first", True), (H100, "all", False)]
)
def test_what_is_compiled_before_serving(devices, asked, first):
    assert resolve(config(compile={"before_ready": asked}), MODEL, devices).compile_first is first


@pytest.mark.parametrize("devices", [replace(CPU, memory=0), replace(H100, memory=2 * GIB)])
def test_no_memory(devices):
    with pytest.raises(ConfigError, match=r"no memory for a KV cache: 0.00 GiB left after 0.00 GiB of weights") as refused:
        resolve(config(), MODEL, devices)
    assert refused.value.param == "kv_cache_memory_gib"


def test_weights_larger_than_the_device():
    with pytest.raises(ConfigError, match=r"left after 130.39 GiB of weights, one page takes 0.03 MiB"):
        resolve(config(), MODEL, H100, weights=70 * 10**9)


def test_a_cache_that_holds_no_request_is_refused():
    with pytest.raises(ConfigError, match="num_pages"):
        resolve(config(cache={"num_pages": 2, "page_size": 1}), MODEL, CPU)


@pytest.mark.parametrize("devices", [CPU, replace(H100, count=8)], ids=["cpu", "gpus"])
def test_a_swap_space_holds_whole_pages_of_each_device(devices):
    page = 16 * KV_VALUES * 2
    for bytes_asked, slots in ((0, 0), (page, 1), (5 * page - 1, 4)):
        resolved = resolve(config(cache={"swap_space": bytes_asked / GIB}), MODEL, replace(devices, host_memory=100 * page))
        assert resolved.swap_slots == slots


def test_a_swap_space_that_holds_nothing_or_more_than_the_host_has_is_refused():
    page = 16 * KV_VALUES * 2
    for asked, says in (
        (0.5 * page / GIB, rf"less than one page, which takes {page:,} bytes"),
        (1.0, r"swap_space is 1 GiB for each of 2 devices, and the host has 1.50 GiB left"),
    ):
        with pytest.raises(ConfigError, match=says) as refused:
            resolve(config(cache={"swap_space": asked}), MODEL, replace(H100, count=2, host_memory=1.5 * GIB))
        assert refused.value.param == "swap_space"


def test_of_a_cpus_memory_the_cache_takes_what_the_swap_space_leaves():
    page = 16 * KV_VALUES * 2
    little = replace(CPU, memory=20 * page + WEIGHTS * 2 + STATE)
    assert resolve(config(cache={"swap_space": 4 * page / GIB}), MODEL, little).num_pages == 8


def test_crash_dumps_go_to_the_users_cache_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dump_directory(RecordConfig()) == tmp_path / ".cache" / "jaxserve" / "dumps"
    assert dump_directory(RecordConfig(dump_dir="~/crashes")) == tmp_path / "crashes"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "speculative_config",
            {"speculation": SpeculationConfig(speculative_config='{"method": "ngram", "num_speculative_tokens": 2}')},
        ),
        ("deterministic", {"kernels": KernelConfig(deterministic=True)}),
        ("attention_kernel", {"kernels": KernelConfig(attention_kernel="xla")}),
        ("kv_write_kernel", {"kernels": KernelConfig(kv_write_kernel="xla")}),
        ("kv_cache_dtype", {"cache": {"kv_cache_dtype": "fp8"}}),
        ("kv_cache_memory_gib", {"cache": {"kv_cache_memory_gib": 1.0}}),
        ("warm_prompts", {"cache": {"warm_prompts": "prompts.jsonl"}}),
    ],
)
def test_what_needs_a_kv_cache_is_refused_without_one(name, settings):
    both_ways = replace(MODEL, bidirectional=True, max_position_embeddings=256)
    assert not resolve(config(), both_ways, CPU, values=0).prefix_caching
    with pytest.raises(ConfigError, match=f"{name} needs a KV cache, and this model has none") as error:
        resolve(config(**settings), both_ways, CPU, values=0)
    assert error.value.param == name
    assert resolve(config(**settings), MODEL, CPU).prefix_caching
