"""What is read off the final hidden states of prompt tokens: one program a reader, run after the steps that have such tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxserve.executor.packed_logprobs import LOGPROBS_WIDTH, pack_logprobs, unpack_logprobs, vocabulary_of
from jaxserve.models.binding import Model, Params, bind_model
from jaxserve.models.config import DecoderConfig
from jaxserve.step.plan import Ints, Plan, Reading
from jaxserve.step.tasks import PROMPT_LOGPROBS
from sharding import partition_spec

CHUNK = 64  # tokens that are read at once, which bounds the logits that are held

Read = Callable[[Model, jax.Array, jax.Array], jax.Array]
"""(model, hidden [C,E], values int32[C]) -> int32[C,width]."""
Finish = Callable[[Model, jax.Array], jax.Array]
"""(model, mean of what was read float32[rows,E]) -> int32[rows,width]."""
ReadAll = Callable[[Params, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""What `make_reader` makes."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One reader.

    Attributes:
        name: as tasks say it.
        width: words that a token gives, of a model.
        make: what reads, traced on these devices.
        unpack: the words int32[N,width] of N tokens as what a StepResult holds.
        detail: what else its program depends on, in words.
        sums: whether what is read of a row's tokens is added up, as float32, on the devices: N is then 1.
        finish: what is made of such sums where rows are whole prompts, and their tokens' values say whether they count.
    """

    name: str
    width: Callable[[DecoderConfig], int]
    make: Callable[[DecoderConfig, Mesh], Read]
    unpack: Callable[[Ints, DecoderConfig], Reading]
    sums: bool = False
    finish: Callable[[DecoderConfig, Mesh], Finish] | None = None
    detail: str = ""


def make_reader(reader: Reader, config: DecoderConfig, mesh: Mesh, max_rows: int) -> ReadAll:
    """A reader's program: (params, hidden[T,E], rows int32[T], values int32[T], count int32[]) -> int32[T,width].

    Row t is what is read of hidden state rows[t] with values[t], for t < count. The work follows count. What is summed is
    int32[max_rows,width]: row values[t] is the sum over these t, or what is made of their mean.
    """
    read, width = reader.make(config, mesh), reader.width(config)
    if reader.sums:
        return _summing(read, width, config, max_rows, reader.finish and reader.finish(config, mesh))

    def read_all(params: Params, hidden: jax.Array, rows: jax.Array, values: jax.Array, count: jax.Array) -> jax.Array:
        model = bind_model(config, params)
        chunk = min(CHUNK, hidden.shape[0])
        out = jnp.zeros((hidden.shape[0], width), jnp.int32)

        def body(index: jax.Array, out: jax.Array) -> jax.Array:
            start = jnp.minimum(index * chunk, hidden.shape[0] - chunk)
            places = jax.lax.dynamic_slice_in_dim(rows, start, chunk)
            words = read(model, hidden[places], jax.lax.dynamic_slice_in_dim(values, start, chunk))
            return jax.lax.dynamic_update_slice_in_dim(out, words, start, 0)

        every: jax.Array = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, body, out)
        return every

    return read_all


def _summing(read: Read, width: int, config: DecoderConfig, max_rows: int, finish: Finish | None) -> ReadAll:
    def sum_all(params: Params, hidden: jax.Array, rows: jax.Array, values: jax.Array, count: jax.Array) -> jax.Array:
        model = bind_model(config, params)
        size, numbers = hidden.shape[0], width if finish is None else hidden.shape[1]
        chunk = min(CHUNK, size)

        def body(index: jax.Array, sums: jax.Array) -> jax.Array:
            places = index * chunk + jnp.arange(chunk)
            taken = jnp.minimum(places, size - 1)  # those behind count go where nobody looks
            words = read(model, hidden[rows[taken]], values[taken])
            return sums.at[jnp.where(places < count, values[taken], max_rows)].add(
                jax.lax.bitcast_convert_type(words, jnp.float32)
            )

        sums = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, body, jnp.zeros((max_rows + 1, numbers), jnp.float32))
        if finish is None:
            return jax.lax.bitcast_convert_type(sums[:max_rows], jnp.int32)
        tokens = jnp.zeros(max_rows + 1, jnp.float32).at[jnp.where(jnp.arange(size) < count, values, max_rows)].add(1.0)
        return finish(model, (sums / jnp.maximum(tokens, 1.0)[:, None])[:max_rows])

    return sum_all


def arguments_of(plan: Plan, reader: Reader, size: int) -> tuple[Ints, Ints, Ints] | None:
    """`rows`, `values` and `count` for what a plan has to read; None if it is nothing."""
    rows, values = np.zeros((2, size), np.int32)
    count = number = 0
    for readout in plan.readouts:
        if readout.reader == reader.name:
            places = np.arange(len(readout.values)) if reader.finish is None else np.flatnonzero(readout.values)
            end = count + len(places)
            rows[count:end] = int(plan.query_start[readout.row]) + readout.offset + places
            values[count:end] = number if reader.sums else readout.values
            count, number = end, number + 1
    return (rows, values, np.array(count, np.int32)) if count else None


def _logprobs(config: DecoderConfig, mesh: Mesh) -> Read:
    pack = jax.shard_map(
        partial(pack_logprobs, vocabulary_of(config, mesh)),
        mesh=mesh,
        in_specs=(partition_spec((None, "vocab")), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,  # every device computes the same from what they exchanged, which the check cannot see
    )

    def read(model: Model, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        words: jax.Array = pack(model.logits(hidden), targets)
        return words

    return read


LOGPROBS_READER = Reader(
    PROMPT_LOGPROBS,
    lambda config: LOGPROBS_WIDTH,
    _logprobs,
    lambda words, config: Reading(logprobs=unpack_logprobs(words, config)),
)
