"""Programs that a start keeps for the next one: found by what they depend on, whole or not at all."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxserve.executor import program_cache
from jaxserve.executor.compile_cache import keep_compiled_programs, kept_directory, nothing_kept
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.program_cache import TEXTS, ProgramCache
from jaxserve.executor.program_spec import ProgramSpec
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from sharding.mesh import make_mesh
from tests.support.tiny_checkpoint import write_tiny_checkpoint

OPTIONS = ExecutorOptions(
    max_num_seqs=2,
    max_num_batched_tokens=2,
    max_model_len=32,
    num_pages=20,
    page_size=4,
    dtype="float32",
    kv_dtype="float32",
)
NOTHING: dict[str, str] = {}
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return decoder_config(read_hf_config(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))))


def lowering_of(config, **options):
    return Lowering(config, make_mesh(1), replace(OPTIONS, **options))


def recipe_of(factor=3, name="small"):
    argument = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    return ProgramSpec(name, jax.jit(lambda values: values * factor + 1), (argument,), 0, NOTHING)


def files(directory, folder="[!t]*"):
    return sorted(path.name for path in directory.glob(f"{folder}/*"))


def compiled(make):
    """How many programs XLA compiled, or had from jax's cache, while `make` ran."""
    count = 0

    def listen(event, duration_secs, **kwargs):
        nonlocal count
        count += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        make()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


def test_the_next_start_traces_and_compiles_nothing(tmp_path, config):
    spec, lowering = recipe_of(), lowering_of(config)
    kept = ProgramCache(tmp_path, lowering)
    assert kept.load(spec) is None
    kept.make(spec)
    assert files(tmp_path) == ["small.program"]

    def never(values):
        raise AssertionError("traced")

    program = ProgramCache(tmp_path, lowering_of(config)).load(replace(spec, function=jax.jit(never)))
    assert program is not None
    assert program(jnp.arange(4.0)).tolist() == [1.0, 4.0, 7.0, 10.0]


def test_an_engine_keeps_all_its_programs_and_finds_them(tmp_path, config):
    """Through make_programs, that asks for each."""
    lowering = lowering_of(config)
    first = make_programs(lowering, lambda *told: None, ProgramCache(tmp_path, lowering))
    names = ["choose_2_general", "copy_pages", "expert_tokens", "forward_2x2", "load_row", "prompt_logprobs", "put_table"]
    assert files(tmp_path) == [f"{name}.program" for name in names]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    second = make_programs(lowering_of(config), lambda *told: None, ProgramCache(tmp_path, lowering))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == written, "compiled again"
    assert second.temporary_bytes == first.temporary_bytes


@pytest.mark.parametrize("change", [{"num_pages": 21}, {"dtype": "bfloat16"}], ids=str)
def test_another_engine_finds_nothing(tmp_path, config, change):
    ProgramCache(tmp_path, lowering_of(config)).make(recipe_of())
    assert ProgramCache(tmp_path, lowering_of(config, **change)).load(recipe_of()) is None


def test_other_flags_of_xla_find_nothing(tmp_path, config, monkeypatch):
    ProgramCache(tmp_path, lowering_of(config)).make(recipe_of())

    def found() -> bool:
        return ProgramCache(tmp_path, lowering_of(config)).load(recipe_of()) is not None

    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"  {flags}  ")
    assert found()
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_enable_fast_math=true")
    assert not found()
    file = tmp_path / "flags"
    monkeypatch.setenv("XLA_FLAGS", str(file))
    file.write_text(flags)
    assert found()
    file.write_text(f"{flags} --xla_cpu_enable_fast_math=true")
    assert not found()
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_flag=1")
    assert not found()


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: b"", lambda content: bytes([content[0] ^ 1]) + content[1:]]
)
def test_a_damaged_file_is_logged_and_compiled(tmp_path, config, caplog, damage):
    kept = ProgramCache(tmp_path, lowering_of(config))
    kept.make(recipe_of())
    paths = sorted(tmp_path.glob("*/*"))
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))
    assert kept.load(recipe_of()) is None
    assert kept.make(recipe_of())(jnp.zeros(4)).tolist() == [1.0] * 4
    for path in paths:
        assert f"the kept program {path} cannot be loaded, compiling: the checksum is another" in caplog.text
    assert kept.load(recipe_of()) is not None


def test_a_directory_that_cannot_be_written_costs_nothing_but_a_line(tmp_path, config, caplog):
    (tmp_path / "file").touch()
    program = ProgramCache(tmp_path / "file", lowering_of(config)).make(recipe_of())
    assert program(jnp.zeros(4)).tolist() == [1.0] * 4
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("the program small is not kept: ")


@pytest.fixture
def cache_allowed():
    """Whatever earlier tests left of jax's settings; they are theirs again afterwards."""
    enabled, place = jax.config.jax_enable_compilation_cache, jax.config.jax_compilation_cache_dir
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    with nothing_kept():  # forgets the cache on the way in and out
        jax.config.update("jax_compilation_cache_dir", place)
    jax.config.update("jax_enable_compilation_cache", enabled)


@pytest.mark.usefixtures("cache_allowed")
def test_what_the_cache_of_jax_has_is_kept_all_the_same(tmp_path, config):
    """On CPUs it gives programs that cannot be written again: these are compiled afresh, once."""
    with nothing_kept():
        keep_compiled_programs(str(tmp_path / "jax"))
    spec = recipe_of(factor=5)
    spec.compile()
    jax.clear_caches()
    kept = ProgramCache(tmp_path / "kept", lowering_of(config))
    assert compiled(lambda: kept.make(spec)) == 1
    program = kept.load(spec)
    assert program is not None
    assert program(jnp.arange(4.0)).tolist() == [1.0, 6.0, 11.0, 16.0]


def test_another_engine_finds_a_program_by_its_text(tmp_path, config):
    lowerings = [lowering_of(config, num_pages=pages) for pages in (30, 31)]
    first, second = (ProgramCache(tmp_path, lowering) for lowering in lowerings)
    assert compiled(lambda: first.make(recipe_of())) == 1
    assert compiled(lambda: second.make(recipe_of())) == 0
    assert files(tmp_path) == ["small.program"] * 2
    program = second.load(recipe_of())
    assert program is not None
    assert program(jnp.zeros(4)).tolist() == [1.0] * 4
    others = replace(recipe_of(), options={"xla_cpu_enable_fast_math": "True"}), recipe_of(factor=4)
    assert [compiled(lambda spec=spec: first.make(spec)) for spec in others] == [1, 1]


def test_folders_that_were_not_used_for_longest_go(tmp_path, config, monkeypatch):
    monkeypatch.setattr(program_cache, "MAX_ENGINES", 2)
    for age, pages in enumerate((30, 31)):
        ProgramCache(tmp_path, lowering_of(config, num_pages=pages)).make(recipe_of())
        for folder in tmp_path.glob("[!t]*"):
            os.utime(folder, (1000 - age, 1000 - age))
    assert ProgramCache(tmp_path, lowering_of(config, num_pages=30)).load(recipe_of()) is not None  # used again
    ProgramCache(tmp_path, lowering_of(config, num_pages=32)).make(recipe_of())
    there = {pages: ProgramCache(tmp_path, lowering_of(config, num_pages=pages)).load(recipe_of()) for pages in (30, 31, 32)}
    assert {pages: program is not None for pages, program in there.items()} == {30: True, 31: False, 32: True}


def test_texts_that_were_not_used_for_longest_go(tmp_path, config, monkeypatch):
    monkeypatch.setattr(program_cache, "MAX_TEXTS", 2)
    kept = ProgramCache(tmp_path, lowering_of(config))
    for factor in (3, 4, 5):
        kept.make(recipe_of(factor))
        for path in (tmp_path / TEXTS).iterdir():
            os.utime(path, (path.stat().st_mtime - 1000,) * 2)
    assert len(files(tmp_path, TEXTS)) == 2
    assert [compiled(lambda factor=factor: kept.make(recipe_of(factor))) for factor in (5, 4, 3)] == [0, 0, 1]


@pytest.mark.usefixtures("cache_allowed")
def test_nothing_is_kept_without_a_directory_of_jax():
    with nothing_kept():
        assert kept_directory() is None
    for place, want in ((None, None), ("gs://bucket/programs", None), ("/somewhere", "/somewhere/programs")):
        jax.config.update("jax_compilation_cache_dir", place)
        assert kept_directory() == (None if want is None else Path(want))
