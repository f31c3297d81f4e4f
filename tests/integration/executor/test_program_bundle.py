"""Programs that were saved: loaded where they fit, named where they do not, compiled where they are damaged."""

import json
import logging
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest

from jaxserve.errors import ConfigError
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering, forward_name
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.program_bundle import MANIFEST, Manifest, ProgramBundle, program_path, read_manifest, save_programs
from jaxserve.executor.program_spec import ProgramSpec
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh
from tests.support.plans import copied, make_plan
from tests.support.tiny_checkpoint import write_tiny_checkpoint

OPTIONS = ExecutorOptions(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=32,
    num_pages=20,
    page_size=4,
    dtype="float32",
    kv_dtype="float32",
    strict=True,
)
STEPS = ["forward_2x2", "forward_8x2"]
CHOICES = ["greedy", "general"]
OTHERS = [*(f"choose_2_{name}" for name in CHOICES), "prompt_logprobs", "load_row", "put_table", "copy_pages", "expert_tokens"]
ALL = len(STEPS + OTHERS)


def lowered(config, devices=2, options=OPTIONS):
    """With the first and the last of the variants that choose tokens: each is another program to compile."""
    lowering = Lowering(config, make_mesh(devices), options)
    lowering.variants = lowering.variants[::6]
    return lowering


@pytest.fixture(scope="module", autouse=True)
def outside_the_cache():
    """As where programs are saved: one that jax's cache gave back lacks functions when it is saved."""
    with nothing_kept():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    config = decoder_config(read_hf_config(directory))
    return config, load_params(directory, config, make_mesh(2), "float32", load_format="dummy")


@pytest.fixture(scope="module")
def lowering(model):
    """Two of the eight devices."""
    return lowered(model[0])


@pytest.fixture(scope="module")
def compiled(lowering):
    """All programs by name."""
    return {spec.name: spec.compile() for spec in lowering.programs()}


@pytest.fixture
def saved(tmp_path, lowering, compiled):
    """The directory."""
    size = save_programs(tmp_path / "new" / "programs", lowering, compiled)
    files = sorted((tmp_path / "new" / "programs").iterdir())
    assert [file.name for file in files] == sorted([MANIFEST, *(f"{name}.program" for name in compiled)])
    assert size == sum(file.stat().st_size for file in files if file.name != MANIFEST)
    return tmp_path / "new" / "programs"


def manifest_of(directory: Path) -> Manifest:
    manifest = read_manifest(directory)
    assert manifest is not None
    return manifest


def tokens_of(executor):
    """Three steps of one sequence, the second with copied pages."""
    plans = [make_plan(([10, 20, 30], 3, [1])), make_plan(([-1], 4, [1]), moves=copied((1, 3))), make_plan(([-1], 5, [3, 2]))]
    return [executor.submit(plan).result().tokens.tolist() for plan in plans]


class Start:
    """A start with saved programs: what was told, what was compiled, and what the engine says.

    As in a process of its own: nothing that was compiled before is known to the lowering.
    """

    def __init__(self, directory, model):
        self.told: list[Any] = []
        self.compiled: list[str] = []
        lowering = lowered(model[0])

        def listen(event, duration_secs, **more):
            if event == "/jax/core/compile/backend_compile_duration":
                self.compiled.append(more["fun_name"])

        for thread in threading.enumerate():
            if thread.name == "jaxserve-compile":  # of executors before this one
                thread.join()
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            saved = ProgramBundle(directory, manifest_of(directory), lowering)
            programs = make_programs(lowering, lambda *told: self.told.append(told), saved)
            programs.steps.wait()
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        executor = LocalExecutor(lowering, programs, model[1])
        self.tokens = tokens_of(executor)
        self.temporary = executor.temporary_bytes


class Compiled:
    """A store that has programs as they were compiled."""

    def __init__(self, programs: dict[str, Any]) -> None:
        self.names = frozenset(programs)
        self._programs = programs

    def load(self, spec: ProgramSpec) -> Any:
        return self._programs[spec.name]

    def make(self, spec: ProgramSpec) -> Any:
        raise AssertionError(f"{spec.name} is there")


@pytest.fixture(scope="module")
def fresh(lowering, compiled, model):
    """Tokens and workspace of an executor that has its programs as they were compiled."""
    executor = LocalExecutor(lowering, make_programs(lowering, lambda *told: None, Compiled(compiled)), model[1])
    tokens = tokens_of(executor)
    assert any(before != after for before, after in pairwise(tokens)), "the tokens say something"
    return tokens, executor.temporary_bytes


def test_saved_programs_are_loaded_and_give_the_same_tokens(saved, model, fresh, caplog):
    start = Start(saved, model)
    assert start.compiled == []
    assert start.told == [("loading programs", done, ALL) for done in range(1, ALL + 1)]
    assert (start.tokens, start.temporary) == fresh
    assert caplog.text == ""


def test_what_is_not_there_is_compiled(tmp_path, lowering, compiled, model, fresh, caplog):
    save_programs(tmp_path, lowering, {name: compiled[name] for name in ("forward_8x2", "prompt_logprobs")})
    start = Start(tmp_path, model)
    assert start.told == [("loading programs", 1, 2), ("loading programs", 2, 2), *(("compiling", n, 6) for n in range(1, 7))]
    assert sorted(set(start.compiled) - {"jit(load_row)", "jit(put_table)"}) == ["jit(choose)", "jit(copy)", "jit(forward)"]
    assert start.tokens == fresh[0]
    assert caplog.text == ""


def test_every_saved_step_is_loaded_before_serving_begins(tmp_path, model):
    """That of 4 rows is not among those that serving begins with."""
    options = replace(OPTIONS, max_num_seqs=16, max_num_batched_tokens=16, first_alone=True)
    lowering = lowered(model[0], 1, options)
    bucket = lowering.grid.choose(4, 4)
    assert bucket not in lowering.grid.first()
    save_programs(tmp_path, lowering, {forward_name(bucket): lowering.forward(bucket).compile()})
    told = []
    programs = make_programs(lowering, lambda *line: told.append(line), ProgramBundle(tmp_path, manifest_of(tmp_path), lowering))
    assert told[0] == ("loading programs", 1, 1)
    assert bucket in programs.steps.forwards()
    programs.steps.wait()


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"num_pages": 21}, ["num_pages: saved 20, here 21"]),
        ({"max_model_len": 31, "max_num_seqs": 3}, ["max_model_len: saved 32, here 31", "max_num_seqs: saved 2, here 3"]),
        ({"kv_dtype": "bfloat16"}, ["kv_dtype: saved float32, here bfloat16"]),
    ],
)
def test_an_engine_that_differs_names_every_field_and_takes_nothing(saved, model, caplog, change, lines):
    other = lowered(model[0], options=replace(OPTIONS, **change))
    names = ProgramBundle(saved, manifest_of(saved), other).names
    assert names == frozenset()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == f"the programs in {saved} are for another engine, compiling: {'; '.join(lines)}"


def test_another_model_and_another_number_of_devices(saved, model, caplog):
    ProgramBundle(saved, manifest_of(saved), lowered(replace(model[0], norm_eps=1e-6), 1))
    assert "model.norm_eps: saved 1e-05, here 1e-06; tensor_parallel_size: saved 2, here 1" in caplog.text


def test_fields_of_one_side_only_are_named(saved, lowering, caplog):
    manifest = manifest_of(saved)
    engine = {name: value for name, value in manifest.engine.items() if name != "jaxlib"} | {"moon": "full"}
    assert ProgramBundle(saved, msgspec.structs.replace(manifest, engine=engine), lowering).names == frozenset()
    assert "jaxlib: saved nothing, here 0." in caplog.text
    assert "moon: saved full, here nothing" in caplog.text


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_files_are_an_error_line_each_and_compiled(saved, model, fresh, caplog):
    other_checksum = "the checksum is not the manifest's"
    damages = {
        "forward_2x2": (flip, other_checksum),
        "choose_2_greedy": (lambda path: path.unlink(), "No such file"),
        "choose_2_general": (lambda path: path.write_bytes(b""), other_checksum),
    }
    for name, (damage, _) in damages.items():
        damage(program_path(saved, name))
    start = Start(saved, model)
    assert len(caplog.records) == len(damages)
    for name, (_, words) in damages.items():
        (record,) = [record for record in caplog.records if str(program_path(saved, name)) in record.message]
        assert record.levelno == logging.ERROR
        assert record.message.startswith(f"the saved program {program_path(saved, name)} cannot be loaded, compiling: ")
        assert words in record.message
    assert start.told[-1] == ("loading programs", ALL, ALL)
    assert sorted(start.compiled) == ["jit(choose)", "jit(choose)", "jit(forward)"]
    assert start.tokens == fresh[0]


def test_a_file_that_holds_something_else_is_compiled_too(saved, lowering, caplog):
    """Whole, but not what its name says: another program, whose results have another structure."""
    manifest = manifest_of(saved)
    program_path(saved, "prompt_logprobs").write_bytes(program_path(saved, "load_row").read_bytes())
    swapped = manifest.programs | {"prompt_logprobs": manifest.programs["load_row"]}
    score = next(spec for spec in lowering.others() if spec.name == "prompt_logprobs")
    assert ProgramBundle(saved, msgspec.structs.replace(manifest, programs=swapped), lowering).load(score) is None
    assert f"the saved program {program_path(saved, 'prompt_logprobs')} cannot be loaded" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"format": 1, "num_pages": 2, "engine": {}}', "missing required field `programs`"),
        (b'{"format": 2, "num_pages": 2, "engine": {}, "programs": {}}', "has format 2, not 1"),
        (b'"\xff"', "cannot be read"),
    ],
)
def test_a_damaged_manifest_is_an_error_line(tmp_path, caplog, content, words):
    (tmp_path / MANIFEST).write_bytes(content)
    assert read_manifest(tmp_path) is None
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(tmp_path / MANIFEST) in record.message
    assert words in record.message


def test_a_directory_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=rf"programs: cannot read {tmp_path / MANIFEST}: No such file") as refused:
        read_manifest(tmp_path)
    assert refused.value.param == "programs"


def test_a_directory_that_cannot_be_written(tmp_path, lowering):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"output: cannot write {tmp_path / 'file'}: File exists") as refused:
        save_programs(tmp_path / "file", lowering, {})
    assert refused.value.param == "output"


def test_a_save_that_is_cut_short_leaves_no_manifest(saved, lowering):
    with pytest.raises(AttributeError):
        save_programs(saved, lowering, {"prompt_logprobs": "no program"})
    assert not (saved / MANIFEST).exists()


def test_the_manifest_is_read_by_people(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["engine"]["model.hidden_size"] == "64"
    assert manifest["engine"]["jax"] == jax.__version__
    assert sorted(manifest["programs"]) == sorted(STEPS + OTHERS)
