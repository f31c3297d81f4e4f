"""Takes weights that another process sends, piece by piece; they replace the engine's when all have come and were checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import jax
import msgspec
import numpy as np

from jaxserve.engine.apart import Apart
from jaxserve.engine.control import SentAdapter, SentMapping
from jaxserve.engine.pause import PauseMode
from jaxserve.engine.weight_updates import WeightVersion
from jaxserve.errors import ConflictError, InvalidRequestError
from jaxserve.weights.live.pieces import FLOAT_DTYPES
from jaxserve.weights.live.received import Received
from jaxserve.weights.live.trees import Arrays


class Fits(Protocol):
    """What is known of a tree by its names and shapes."""

    @property
    def names(self) -> Sequence[str]: ...


class Model(Protocol):
    """What takes trees: see `LiveModel` and `AdapterUpdates`."""

    def fit(self, arrays: Arrays, mapping: SentMapping, *, partial: bool) -> Fits: ...

    def check(self, params: Arrays, mapping: SentMapping, *, partial: bool) -> Any: ...


class Updates(Protocol):
    """Of the weights of a model, of its draft or of an adapter: see `WeightUpdates`, `DraftUpdates` and `AdapterUpdates`."""

    @property
    def model(self) -> Model: ...

    def next_version(self, version: WeightVersion | None, *, force: bool) -> Any: ...

    def put(self, incoming: Any, version: Any, *, mode: PauseMode) -> Future[Any]: ...


class _Update(msgspec.Struct, frozen=True):
    """One that was started.

    Attributes:
        id: that its pieces name.
        updates: of the weights that it is for.
        mapping, partial: see `LiveModel.check`.
    """

    id: str
    received: Received
    updates: Updates
    mapping: SentMapping
    partial: bool


class WeightTransfer:
    """Of one engine. Its methods are called by the thread that drives it, between two turns; one update is under way at most.

    What has come is in the host's memory, and the old weights are served, until `finish` puts all in their place.

    Args:
        draft: of the draft model's weights; None where there is none.
        adapter: of an adapter that is announced; None where none are served.
    """

    def __init__(self, updates: Updates, draft: Updates | None, adapter: Callable[[SentAdapter], Updates] | None = None) -> None:
        self._updates = updates
        self._draft = draft
        self._adapter = adapter
        self._is_open = False
        self._update: _Update | None = None

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes of an update that came, of how many."""
        update = self._update
        return (0, 0) if update is None else (update.received.bytes, update.received.wanted_bytes)

    def open(self) -> None:
        """Take updates from now on. What another sender began is dropped."""
        self._is_open, self._update = True, None

    def close(self) -> None:
        """Take no more updates, and drop what has come of one."""
        self._is_open, self._update = False, None

    def start(
        self,
        update_id: str,
        names: Sequence[str],
        dtype_names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        mapping: SentMapping,
        partial: bool,
        draft: bool,
        adapter: SentAdapter | None,
    ) -> None:
        """Announce an update of the weights, of the draft's, or an adapter: all its arrays, which are checked against the model's
        before any comes.

        Raises ConflictError where updates are not taken, one is under way, or there is no draft that has weights, or no adapters,
        InvalidRequestError for what is no announcement, CheckpointError or ConfigError for arrays that are not the model's.
        """
        if not self._is_open:
            raise ConflictError("no weights are taken: POST /init_weight_transfer_engine first")
        if self._update is not None:
            raise ConflictError(
                "an update is under way: finish it, or drop what has come of it by /init_weight_transfer_engine again"
            )
        if adapter is not None and (draft or partial):
            raise InvalidRequestError("an adapter is all that is announced, and of the model", param="partial")
        updates = self._updates_of(adapter, draft=draft)
        announced = _announced(names, dtype_names, shapes)
        arrays = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in announced.items()}
        fitting = updates.model.fit(arrays, mapping, partial=partial)
        self._update = _Update(update_id, Received(announced, set(fitting.names)), updates, mapping, partial)

    def _updates_of(self, adapter: SentAdapter | None, *, draft: bool) -> Updates:
        if adapter is not None:
            if self._adapter is None:
                raise ConflictError("no adapters are served: the engine was started without enable_lora")
            return self._adapter(adapter)
        updates = self._draft if draft else self._updates
        if updates is None:
            raise ConflictError("there is no draft model, nor a head, whose weights could be updated (speculative_config)")
        return updates

    def put(self, update_id: str, content: bytes) -> Callable[[], None]:
        """What keeps a piece, in any thread. Raises ConflictError for one of another update than is under way."""
        return partial(self._require(update_id).received.put, content)

    def finish(
        self, update_id: str | None, version: WeightVersion | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[Any]]:
        """Check all that has come and put it in the place of the weights; done when it is. None: whichever is under way.

        The old weights stay, and what has come is kept for another try, where ConflictError says that not all has come,
        CheckpointError that it does not fit, InvalidRequestError that the version is not newer.
        """
        update = self._require(update_id)
        updates = update.updates
        updates.next_version(version, force=force)

        def check() -> Any:
            arrays = update.received.take()
            try:
                return updates.model.check(arrays, update.mapping, partial=update.partial)
            except BaseException:
                update.received.give_back()
                raise

        def put(incoming: Any) -> Future[Any]:
            if self._update is not update:
                raise ConflictError("what has come was dropped meanwhile, by another sender or because no more is taken")
            self._update = None
            return updates.put(incoming, updates.next_version(version, force=force), mode=mode)

        return Apart(check, put)

    def _require(self, update_id: str | None) -> _Update:
        update = self._update
        if update is None:
            raise ConflictError("no update is under way: POST /start_weight_update first")
        if update_id is not None and update_id != update.id:
            raise ConflictError(f"the update {update_id!r} is not under way: another sender took its place")
        return update


def _announced(
    names: Sequence[str], dtype_names: Sequence[str], shapes: Sequence[Sequence[int]]
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    if not len(names) == len(dtype_names) == len(shapes):
        raise InvalidRequestError(
            f"names, dtype_names and shapes must be as many: {len(names)}, {len(dtype_names)}, {len(shapes)}", param="names"
        )
    announced: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
        if name in announced:
            raise InvalidRequestError(f"names has {name!r} twice", param="names")
        if dtype not in FLOAT_DTYPES:
            raise InvalidRequestError(f"{name} is {dtype}, not {', '.join(FLOAT_DTYPES)}", param="dtype_names")
        if any(size < 0 for size in shape):
            raise InvalidRequestError(f"{name} is {list(shape)}", param="shapes")
        announced[name] = tuple(shape), FLOAT_DTYPES[dtype]
    return announced
