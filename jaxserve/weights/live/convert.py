"""Makes parameters from arrays on devices, each by a jitted function that gives it as the loader would have placed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.errors import ConfigError
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.device_packing import pack_sources
from jaxserve.weights.jobs import TensorRead
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import At, Step, View, Views, apply_steps
from jaxserve.weights.packed import Packer
from pallas_kernels.matmul import Matrix, Weight, pack


@dataclass(frozen=True, slots=True)
class _Piece:
    """One source of a rule: which of the arrays it is in, and how it is had from there."""

    array: int
    steps: tuple[Step, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Everything static about how a parameter is made: parameters of all layers have the same one.

    Attributes:
        pieces: of every source of the rule.
        packing, stack: the rule's.
        shape, dtype: of the plain parameter.
        held: how it is held: layout, scheme and whether it is a stack; None for plain.
        shardings: of what is held, leaf after leaf.
    """

    pieces: tuple[_Piece, ...]
    packing: Packing
    stack: int | None
    shape: tuple[int, ...]
    dtype: str
    held: tuple[Any, Any, bool] | None
    shardings: tuple[NamedSharding, ...]


class Converter:
    """Makes the parameters of one decoder on one mesh; kept as long as its programs are wanted.

    Args:
        packer: says how parameters are held.
    """

    def __init__(self, mesh: Mesh, packer: Packer) -> None:
        self._mesh = mesh
        self._packer = packer
        self._programs: dict[_Recipe, Callable[..., Weight]] = {}

    @property
    def num_programs(self) -> int:
        return len(self._programs)

    def require_holdable(self, jobs: Sequence[TensorRead]) -> None:
        """Raise ConfigError for parameters that the engine holds rounded: the numbers given are not."""
        for job in jobs:
            target = self._target(job)
            if target is not None and target.scales is not None:
                raise ConfigError(
                    f"{'.'.join(job.rule.path)} is held as {target.scheme.name}: weights from a program are served in the dtype "
                    "that they are given in or cast to, not quantized (quantization 'none', and no quantized checkpoint)",
                    param="quantization",
                )

    def make(self, job: TensorRead, views: Views, arrays: Arrays) -> Weight:
        """A parameter in arrays of its own: none of the given ones is in it, whatever becomes of those."""
        given: list[jax.Array] = []
        places: dict[tuple[str, int | None], int] = {}
        pieces, numbers = [], []
        for source in job.rule.sources:
            view = views[source.name]
            near, cut = self._is_near(arrays[view.name]), self._cut(view)
            key = (view.name, None if near or cut is None else view.at[0])
            if key not in places:
                places[key] = len(given)
                given.append(arrays[view.name] if near else self._brought(arrays[view.name], view, cut))
            numbers += list(view.at) if near or cut is None else [0, *view.at[1:]]
            pieces.append(_Piece(places[key], view.steps, replace(source, name="")))
        recipe = self._recipe(job, tuple(pieces))
        program = self._programs.get(recipe)
        if program is None:
            program = self._programs[recipe] = self._program(recipe)
        return program(given, np.array(numbers, np.int32))

    def _target(self, job: TensorRead) -> Matrix | None:
        plain = jax.ShapeDtypeStruct(job.shape, job.dtype, sharding=job.sharding)
        return self._packer.matrix(job.rule.path, plain)

    def _recipe(self, job: TensorRead, pieces: tuple[_Piece, ...]) -> _Recipe:
        target = self._target(job)
        shardings = [job.sharding] if target is None else [part.sharding for part in jax.tree.leaves(target)]
        held = None if target is None else (target.layout, target.scheme, target.stacked)
        return _Recipe(pieces, job.rule.packing, job.rule.stack, job.shape, job.dtype, held, tuple(shardings))

    def _program(self, recipe: _Recipe) -> Callable[..., Weight]:
        make = partial(_make, recipe=recipe)
        if recipe.held is None:
            return jax.jit(make, out_shardings=recipe.shardings[0])
        return jax.jit(make, out_shardings=_as_tree(recipe))

    def _is_near(self, array: Any) -> bool:
        """Whether a program of the mesh takes an array as it is."""
        if not isinstance(array, jax.Array):
            return False
        sharding = array.sharding
        if self._mesh.devices.size == 1:
            return sharding.device_set == set(self._mesh.devices.flat)
        return isinstance(sharding, NamedSharding) and sharding.mesh == self._mesh

    def _cut(self, view: View) -> At | None:
        first = view.steps[0] if view.steps else None
        return first if isinstance(first, At) else None

    def _brought(self, array: Any, view: View, cut: At | None) -> jax.Array:
        """An array of other devices on the mesh's, divided over them: of a stack only the entry that is wanted."""
        if cut is not None:
            array = _entry(array, view.at[0], cut.axis)
        count = self._mesh.devices.size
        divided = next((axis for axis, size in enumerate(array.shape) if size % count == 0), None)
        spec = PartitionSpec() if divided is None else PartitionSpec(*[None] * divided, self._mesh.axis_names)
        brought: jax.Array = jax.device_put(array, NamedSharding(self._mesh, spec))
        return brought


def _entry(array: Any, at: int, axis: int) -> Any:
    """One entry along an axis, which stays. Of an array in the host's memory no more than that goes to a device."""
    if isinstance(array, np.ndarray):
        return array[(slice(None),) * axis + (slice(at, at + 1),)]
    return _entry_there(array, np.int32(at), axis)


@partial(jax.jit, static_argnames=("axis",))
def _entry_there(array: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, at, 1, axis)


def _as_tree(recipe: _Recipe) -> Any:
    """The shardings in the tree of what is held."""
    shapes = jax.eval_shape(partial(_hold, recipe=recipe), jax.ShapeDtypeStruct(recipe.shape, recipe.dtype))
    return jax.tree.unflatten(jax.tree.structure(shapes), recipe.shardings)


def _make(arrays: list[jax.Array], numbers: jax.Array, *, recipe: _Recipe) -> Weight:
    at = iter(range(numbers.shape[0]))
    sources = []
    for piece in recipe.pieces:
        own = [numbers[next(at)] for step in piece.steps if isinstance(step, At)]
        tensor = apply_steps(arrays[piece.array], piece.steps, own)
        sources.append(_matrix(tensor, piece.source).astype(recipe.dtype))
    if recipe.stack is None:
        return _hold(_packed(sources, recipe.pieces, recipe, recipe.shape), recipe)
    each = len(sources) // recipe.stack
    members = [
        _packed(sources[first : first + each], recipe.pieces[first : first + each], recipe, recipe.shape[1:])
        for first in range(0, len(sources), each)
    ]
    return _hold(jnp.stack(members), recipe)


def _packed(sources: Sequence[jax.Array], pieces: Sequence[_Piece], recipe: _Recipe, shape: tuple[int, ...]) -> jax.Array:
    columns = recipe.packing is Packing.COLUMNS
    parts = tuple(piece.source.parts(shape[-2]) for piece in pieces) if columns else ()
    return pack_sources(sources, recipe.packing, parts, shape)


def _hold(parameter: jax.Array, recipe: _Recipe) -> Weight:
    own = jnp.copy(parameter)  # or an array that nothing changes would be the given one
    if recipe.held is None:
        return own
    layout, scheme, stacked = recipe.held
    return pack(own, layout, scheme, stacked=stacked)


def _matrix(tensor: jax.Array, source: Source) -> jax.Array:
    """A source's matrix or vector, wherever in its tensor that is; see `packing.stored_bounds`."""
    if source.expert is not None:
        tensor = tensor[source.expert]
    if source.transposed:
        tensor = tensor.T
    first, phase = divmod(source.first_row, source.row_step)
    start, stop = first * source.row_step, (first + source.shape[0]) * source.row_step
    return tensor[start:stop][phase :: source.row_step]


def complete_rules(rules: Sequence[WeightRule], views: Views, arrays: Arrays) -> list[WeightRule]:
    """The rules of a part of a tree. Raises ConfigError for a parameter of which only a part is there."""
    chosen = []
    for rule in rules:
        here = [source.name for source in rule.sources if views[source.name].name in arrays]
        if not here:
            continue
        missing = [source.name for source in rule.sources if views[source.name].name not in arrays]
        if missing:
            raise ConfigError(
                f"a partial update has {here[0]} but not {missing[0]}: both are in the parameter {'.'.join(rule.path)}",
                param="params",
            )
        chosen.append(rule)
    return chosen
