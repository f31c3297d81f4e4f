"""Steps that are compiled while others serve, and the guard against compilations inside a step."""

import gc
import logging
import threading

import jax
import jax.numpy as jnp
import pytest

from jaxserve.executor.compile_guard import CompileGuard, LateCompileError
from jaxserve.executor.step_programs import StepPrograms
from jaxserve.step.buckets import Bucket, BucketGrid

GRID = BucketGrid.make(max_rows=8, max_tokens=64, min_rows=1)
LARGEST = Bucket(64, 8)


class Compiler:
    """Compiles when it is let, in the order that it is asked; fails for `broken`."""

    def __init__(self, broken=None):
        self.broken = broken
        self.go = threading.Event()

    def __call__(self, bucket):
        assert self.go.wait(30)
        if bucket == self.broken:
            raise ValueError("no such kernel")
        return f"program {bucket.tokens} x {bucket.rows}"


def test_a_plan_is_padded_up_until_its_bucket_is_there():
    compiler = Compiler()
    programs = StepPrograms(GRID, {LARGEST: "largest", Bucket(4, 4): "four"}, compiler)
    assert programs.choose(4, 4) == (Bucket(4, 4), "four")
    assert programs.misses == 0
    assert programs.choose(3, 1) == (Bucket(4, 4), "four")
    assert programs.choose(2, 2) == (Bucket(4, 4), "four")
    assert programs.choose(5, 5) == (LARGEST, "largest")
    assert programs.misses == 2
    compiler.go.set()
    programs.wait()
    assert programs.choose(2, 2) == (Bucket(2, 2), "program 2 x 2")
    assert programs.misses == 2
    assert programs.compiled().keys() == set(GRID.buckets)


def test_a_step_that_cannot_be_compiled_is_logged_and_done_without(caplog):
    compiler = Compiler(broken=Bucket(2, 2))
    compiler.go.set()
    with caplog.at_level(logging.ERROR):
        programs = StepPrograms(GRID, {LARGEST: "largest"}, compiler)
        programs.wait()
    assert "compiling the step of 2 tokens in 2 rows failed" in caplog.text
    assert programs.choose(2, 2)[0] == Bucket(4, 4)
    assert programs.misses == 1


def test_nothing_is_compiled_behind_a_full_grid():
    programs = StepPrograms(GRID, dict.fromkeys(GRID.buckets, "ready"), Compiler())
    programs.wait()
    assert programs.choose(1, 1) == (Bucket(1, 1), "ready")
    with pytest.raises(ValueError, match="no bucket holds 65 tokens"):
        programs.choose(65, 1)


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
    gone = []
    unregister = jax.monitoring.unregister_event_duration_listener
    monkeypatch.setattr(jax.monitoring, "unregister_event_duration_listener", lambda listen: gone.append(unregister(listen)))
    guard = CompileGuard(strict=True)
    del guard
    gc.collect()
    assert len(gone) == 1
