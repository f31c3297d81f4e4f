"""Steps that are compiled while others serve, and the guard against compilations inside a step."""

import gc
import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxserve.executor.compile_guard import CompileGuard, LateCompileError
from jaxserve.executor.step_programs import DraftPrograms, StepProgram, StepPrograms
from jaxserve.sampling.options import PENALTIES, RANDOM, STANDARD, TRUNCATION
from jaxserve.sampling.variants import Variant, variants_of
from jaxserve.step.buckets import Bucket, BucketGrid

GRID = BucketGrid.make(max_rows=8, max_tokens=64, min_rows=1)
LARGEST = Bucket(64, 8)


VARIANTS = variants_of(STANDARD, straight=True)
GENERAL = VARIANTS[-1]


class Compiler:
    """Compiles when it is let, in the order that it is asked; fails for `broken`."""

    def __init__(self, broken: Any = None) -> None:
        self.broken = broken
        self.go = threading.Event()
        self.compiled: list[str] = []

    def forward(self, bucket: Bucket) -> str:
        return self._compile(bucket, f"forward {bucket.tokens} x {bucket.rows}")

    def choose(self, rows: int, drafts: int, variant: Variant) -> str:
        return self._compile((rows, variant.name), f"{variant.name} of {rows}")

    def draft(self, bucket: Bucket) -> DraftPrograms | None:
        return None

    def _compile(self, what: Any, name: str) -> str:
        assert self.go.wait(30)
        if what == self.broken:
            raise ValueError("no such kernel")
        self.compiled.append(name)
        return name


def made(compiler: Compiler, *buckets: Bucket) -> StepPrograms:
    """What there is when these buckets are ready."""
    forwards = {bucket: f"forward {bucket.tokens} x {bucket.rows}" for bucket in buckets}
    chooses = {(bucket.rows, bucket.drafts, GENERAL): f"general of {bucket.rows}" for bucket in buckets}
    return StepPrograms(GRID, VARIANTS, forwards, chooses, compiler)


def test_a_plan_is_padded_up_until_its_bucket_is_there() -> None:
    compiler = Compiler()
    programs = made(compiler, LARGEST, Bucket(4, 4))
    assert programs.bucket(4, 4) == Bucket(4, 4)
    assert programs.misses == 0
    assert programs.bucket(3, 1) == Bucket(4, 4)
    assert programs.bucket(2, 2) == Bucket(4, 4)
    assert programs.bucket(5, 5) == LARGEST
    assert programs.misses == 2
    compiler.go.set()
    programs.wait()
    assert programs.bucket(2, 2) == Bucket(2, 2)
    assert programs.program(Bucket(2, 2), frozenset(STANDARD.needs)) == StepProgram("forward 2 x 2", "general of 2")
    assert programs.misses == 2
    assert programs.forwards().keys() == set(GRID.buckets)


def test_a_variant_is_compiled_when_it_is_needed_and_until_then_another_does_its_work() -> None:
    compiler = Compiler()
    programs = made(compiler, *GRID.buckets)
    truncated, penalized = frozenset({RANDOM, TRUNCATION}), frozenset({PENALTIES})
    for _ in range(3):
        assert programs.program(LARGEST, truncated) == StepProgram("forward 64 x 8", "general of 8")
    assert programs.program(LARGEST, frozenset(STANDARD.needs)) == StepProgram("forward 64 x 8", "general of 8")
    compiler.go.set()
    programs.wait()
    assert programs.program(LARGEST, truncated) == StepProgram("forward 64 x 8", "truncated of 8")
    assert programs.program(LARGEST, frozenset({RANDOM})) == StepProgram("forward 64 x 8", "truncated of 8"), (
        "the cheapest there is"
    )
    programs.wait()
    assert programs.program(LARGEST, frozenset({RANDOM})) == StepProgram("forward 64 x 8", "random of 8")
    assert programs.program(LARGEST, penalized) == StepProgram("forward 64 x 8", "general of 8")
    programs.wait()
    assert programs.program(LARGEST, penalized) == StepProgram("forward 64 x 8", "penalized of 8")
    assert compiler.compiled == ["truncated of 8", "random of 8", "penalized of 8"], "once each, and none that nobody needs"


@pytest.mark.parametrize("broken", [Bucket(2, 2), (2, "general")], ids=str)
def test_a_step_that_cannot_be_compiled_is_logged_and_done_without(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler(broken=broken)
    compiler.go.set()
    with caplog.at_level(logging.ERROR):
        programs = made(compiler, LARGEST)
        programs.wait()
    assert "compiling the step of 2 tokens in 2 rows failed" in caplog.text
    assert programs.bucket(2, 2) == Bucket(4, 4)
    assert programs.misses == 1


def test_a_variant_that_cannot_be_compiled_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler(broken=(8, "greedy"))
    compiler.go.set()
    programs = made(compiler, *GRID.buckets)
    for _ in range(2):
        assert programs.program(LARGEST, frozenset()) == StepProgram("forward 64 x 8", "general of 8")
        programs.wait()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["compiling the greedy choice of 8 rows failed"]


def test_nothing_is_compiled_behind_a_full_grid() -> None:
    compiler = Compiler()
    programs = made(compiler, *GRID.buckets)
    programs.wait()
    assert programs.bucket(1, 1) == Bucket(1, 1)
    with pytest.raises(ValueError, match="no bucket holds 65 tokens"):
        programs.bucket(65, 1)
    assert compiler.compiled == []


def compile_something(number):
    return jax.jit(lambda x: x + number)(jnp.zeros(3, jnp.float32))


def test_a_compilation_inside_is_counted_and_logged(caplog):
    guard = CompileGuard(strict=False)
    with caplog.at_level(logging.WARNING), guard.watch("step 7 of 4 tokens in 4 rows"):
        compile_something(1.5)
    assert guard.compiles >= 1
    assert "step 7 of 4 tokens in 4 rows compiled" in caplog.text
    assert "lambda" in caplog.text


def test_a_strict_guard_raises():
    guard = CompileGuard(strict=True)
    with pytest.raises(LateCompileError, match=r"step 8 compiled .*lambda.* after the engine was ready"), guard.watch("step 8"):
        compile_something(2.5)
    counted = guard.compiles
    with guard.watch("step 9"):
        pass
    assert guard.compiles == counted


def test_lowering_alone_is_no_compilation():
    guard = CompileGuard(strict=True)
    with guard.watch("step 1"):
        jax.jit(lambda x: x + 6.5).lower(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert guard.compiles == 0


def test_what_other_threads_compile_is_theirs():
    guard = CompileGuard(strict=True)
    with guard.watch("step 1"):
        thread = threading.Thread(target=compile_something, args=(3.5,))
        thread.start()
        thread.join()
    compile_something(4.5)
    assert guard.compiles == 0


def test_an_error_inside_is_not_hidden():
    guard = CompileGuard(strict=True)
    with pytest.raises(TypeError), guard.watch("step 1"):
        compile_something("not a number")
    with guard.watch("step 2"):
        pass


def test_a_guard_that_is_gone_listens_no_more(monkeypatch):
    gone: list[None] = []
    unregister = jax.monitoring.unregister_event_duration_listener
    monkeypatch.setattr(jax.monitoring, "unregister_event_duration_listener", lambda listen: gone.append(unregister(listen)))
    guard = CompileGuard(strict=True)
    del guard
    gc.collect()
    assert len(gone) == 1
