"""Options of attention are one static object: what nobody reads is refused, what is passed arrives as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.ragged_paged_attention import AttentionOptions, api, implementations, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation

ARRAYS = (
    jnp.zeros((5, 4, 16)),
    jnp.zeros((2, 6, 2, 2, 8, 16)),
    jnp.zeros((3, 4), jnp.int32),
    jnp.zeros(4, jnp.int32),
    jnp.zeros(3, jnp.int32),
)


@dataclass(frozen=True, slots=True)
class Slopes(AttentionOptions):
    """An option that somebody has just added."""

    slope: float | None = None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"soft_cap": 0.0}, "soft_cap must be above 0, got 0.0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"chunk": 16, "window": 3}, "chunk must be at least 1, and goes with no window, got 16 and window=3"),
    ],
)
def test_values(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        AttentionOptions(1.0, **options)


def test_what_is_asked():
    assert AttentionOptions(0.5).asked == ()
    assert AttentionOptions(0.5, soft_cap=3.0, window=2).asked == ("window", "soft_cap")


@pytest.mark.parametrize("entry", implementations.IMPLEMENTATIONS, ids=lambda entry: entry.name)
def test_a_new_option_is_refused_until_an_implementation_reads_it(entry):
    head = jnp.zeros((5, 2, 128), jnp.bfloat16), jnp.zeros((2, 6, 2, 1, 16, 128), jnp.bfloat16)
    for slope, reason in ((None, None), (0.5, "it does not compute slope")):
        problem = AttentionProblem.of(*head, ARRAYS[2], options=Slopes(1.0, slope=slope), kv_scales=None, sinks=None)
        assert entry.supports(problem) == reason


def test_the_caller_is_told():
    with pytest.raises(ValueError, match=r"no implementation for this on cpu: .*not in xla: it does not compute slope"):
        ragged_paged_attention(*ARRAYS, layer=0, options=Slopes(1.0, slope=0.5))
    with pytest.raises(ValueError, match="cannot run in 'xla': it does not compute slope"):
        ragged_paged_attention(*ARRAYS, layer=0, options=Slopes(1.0, slope=0.5), implementation="xla")


def test_a_chunk_is_whole_pages():
    with pytest.raises(ValueError, match="a chunk must be whole pages, and 12 positions are none of 8"):
        ragged_paged_attention(*ARRAYS, layer=0, options=AttentionOptions(1.0, chunk=12))


def test_an_implementation_gets_the_object_itself(monkeypatch):
    """And needs to be traced once for all equal ones."""
    seen = []

    def attend(q, *arrays, options, **others):
        seen.append(options)
        return q

    monkeypatch.setattr(api, "IMPLEMENTATIONS", (Implementation("fake", attend, limits="tests"),))
    given = Slopes(1.0, window=3, slope=0.5)
    call = jax.jit(ragged_paged_attention, static_argnames=("layer", "options"))
    for options in (given, Slopes(1.0, window=3, slope=0.5), Slopes(1.0, window=4, slope=0.5)):
        call(*ARRAYS, layer=0, options=options)
    assert seen == [given, Slopes(1.0, window=4, slope=0.5)]
    assert seen[0] is given
