"""Weights that another process sends, as the engine's thread takes them: all of them at once, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from jaxserve.engine.calls import (
    CloseTransfer,
    FinishUpdate,
    Info,
    NameWeights,
    OpenTransfer,
    PutPiece,
    ResetWeights,
    SleepEngine,
    StartUpdate,
    WakeUp,
    WeightSums,
    WorldSize,
    answer_type,
)
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.engine.remote.messages import Answer, decode_from_engine
from jaxserve.errors import CheckpointError, ConflictError, EngineDeadError, InvalidRequestError
from jaxserve.executor.compile_guard import COMPILED
from jaxserve.weights.live.pieces import pieces_of
from tests.support.driven import PATIENCE, Driven
from tests.support.rollouts import weights

Given = Mapping[str, Any]


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.loop.stop()


@pytest.fixture
def ready(driven: Driven) -> Driven:
    """With the weights of seed 1, named "one"."""
    send(driven, weights("qwen3", 1), "one", force=True)
    driven.call(CloseTransfer())
    return driven


def announce(given: Given, **more: Any) -> StartUpdate:
    dtypes, shapes = [str(array.dtype) for array in given.values()], [list(array.shape) for array in given.values()]
    return StartUpdate("u", list(given), dtypes, shapes, **more)


def put_all(driven: Driven, given: Given) -> None:
    for piece in pieces_of(given.items(), 3000):
        driven.call(PutPiece("u", piece))


def send(driven: Driven, given: Given, version: int | str | None, **finish: Any) -> Any:
    driven.call(OpenTransfer())
    driven.call(announce(given))
    put_all(driven, given)
    return driven.call(FinishUpdate("u", version, **finish))


def said(driven: Driven) -> list[int]:
    driven.add(8)
    return [update.token for update in driven.finish() if update.token is not None]


@contextmanager
def compiled() -> Iterator[list[str]]:
    """What any thread compiles."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            names.append(str(kwargs.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def held(driven: Driven) -> Any:
    return driven.call(Info()).received_bytes


def test_what_was_sent_is_served_and_nothing_is_compiled(ready):
    first = said(ready)
    info = send(ready, weights("qwen3", 2), 2)
    assert (info.version, info.received_bytes, info.wanted_bytes) == (2, 0, 0)
    second = said(ready)
    assert second != first
    with compiled() as names:
        send(ready, weights("qwen3", 1), 3)
        assert said(ready) == first
    assert names == []


def test_old_weights_are_served_until_the_end(ready):
    first, two = said(ready), weights("qwen3", 2)
    ready.call(OpenTransfer())
    info = ready.call(announce(two))
    total = sum(array.nbytes for array in two.values())
    assert (info.version, info.received_bytes, info.wanted_bytes) == ("one", 0, total)
    *most, last = pieces_of(two.items(), 3000)
    for piece in most:
        ready.call(PutPiece("u", piece))
    assert 0 < held(ready) < total
    assert said(ready) == first
    with pytest.raises(ConflictError, match="did not come, or not all of it"):
        ready.call(FinishUpdate("u", 4))
    assert said(ready) == first
    ready.call(PutPiece("u", last))
    assert ready.call(FinishUpdate(None, 4)).version == 4


def test_a_sender_that_died_leaves_nothing_once_another_comes(ready):
    first, two = said(ready), weights("qwen3", 2)
    ready.call(OpenTransfer())
    ready.call(announce(two))
    for piece in list(pieces_of(two.items(), 3000))[:4]:
        ready.call(PutPiece("u", piece))
    with pytest.raises(ConflictError, match="an update is under way"):
        ready.call(announce(two))
    assert said(ready) == first
    ready.call(OpenTransfer())
    assert held(ready) == 0
    ready.call(announce(two))
    with pytest.raises(ConflictError, match="'v' is not under way"):
        ready.call(PutPiece("v", next(iter(pieces_of(two.items(), 3000)))))
    ready.call(CloseTransfer())
    with pytest.raises(ConflictError, match="no update is under way"):
        ready.call(PutPiece("u", b""))
    with pytest.raises(ConflictError, match="no weights are taken"):
        ready.call(announce(two))
    assert said(ready) == first


def test_another_sender_that_comes_while_all_is_checked_has_the_last_word(ready):
    """What was taken out to be checked is not put in place."""
    two = weights("qwen3", 2)
    ready.call(OpenTransfer())
    ready.call(announce(two))
    put_all(ready, two)
    apart = ready.loop.call(lambda core: [core.control.transfer.finish("u", 5, mode="abort", force=False)]).result(PATIENCE)[0]
    incoming = apart.work()
    ready.call(OpenTransfer())
    with pytest.raises(ConflictError, match="dropped meanwhile"):
        ready.loop.call(lambda core: apart.then(incoming)).result(PATIENCE)
    assert ready.call(Info()).version == "one"


def test_what_does_not_fit_is_refused_before_anything_comes(ready):
    two = dict(weights("qwen3", 2))
    name = "model.layers.0.mlp.up_proj.weight"
    ready.call(OpenTransfer())
    with pytest.raises(CheckpointError, match=rf"1 of the wrong shape: {name}"):
        ready.call(announce({**two, name: two[name].T}))
    with pytest.raises(CheckpointError, match=rf"1 missing: {name}"):
        ready.call(announce({other: array for other, array in two.items() if other != name}))
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.other"):
        ready.call(announce({**two, "model.other": two[name]}))
    with pytest.raises(InvalidRequestError, match=f"{name} is float64"):
        ready.call(announce({**two, name: two[name].astype(np.float64)}))
    with pytest.raises(InvalidRequestError, match="must be as many: 1, 0, 0"):
        ready.call(StartUpdate("u", ["a"], [], []))
    with pytest.raises(InvalidRequestError, match="'a' twice"):
        ready.call(StartUpdate("u", ["a", "a"], ["float32"] * 2, [[1], [1]]))
    with pytest.raises(InvalidRequestError, match=r"a is \[-1\]"):
        ready.call(StartUpdate("u", ["a"], ["float32"], [[-1]]))
    assert ready.call(announce(two)).wanted_bytes > 0


def test_numbers_that_are_none_are_refused_and_may_come_again(ready):
    first, two = said(ready), dict(weights("qwen3", 2))
    name = "model.norm.weight"
    spoilt = {**two, name: np.full_like(two[name], np.nan)}
    with pytest.raises(CheckpointError, match=f"{name} has {two[name].size} in {two[name].size}, the first at"):
        send(ready, spoilt, 9)
    assert said(ready) == first
    with pytest.raises(InvalidRequestError, match="'one' was served already"):
        ready.call(FinishUpdate("u", "one"))
    put_all(ready, two)
    assert ready.call(FinishUpdate("u", 9)).version == 9
    with pytest.raises(InvalidRequestError, match="9 is not newer than 9"):
        send(ready, two, 9)
    with pytest.raises(InvalidRequestError, match="at most"):
        ready.call(NameWeights(2**63))


def test_a_part_of_the_model(ready):
    one, two = weights("qwen3", 1), weights("qwen3", 2)
    norms = {name: array for name, array in two.items() if name.endswith("norm.weight")}
    ready.call(OpenTransfer())
    ready.call(announce(norms, partial=True))
    put_all(ready, norms)
    ready.call(FinishUpdate("u", "norms"))
    partly = said(ready)
    send(ready, {**one, **norms}, "both")
    assert said(ready) == partly


def test_a_piece_is_not_told_whole():
    call = PutPiece("u", b"x" * 1000)
    assert repr(call) == "PutPiece('u', 1000 bytes)"


def test_checksums_tell_that_an_update_arrived(ready):
    """Zeros come from reset; what arrives is held bit for bit as it was."""
    (before,) = ready.call(WeightSums())
    first = said(ready)
    assert all(len(one) == 64 for one in before.values())
    assert ready.call(ResetWeights()).version == "reset"
    (zeros,) = ready.call(WeightSums())
    assert zeros.keys() == before.keys()
    assert all(zeros[name] != before[name] for name in before)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(ready.built.core.executor.weights.tree))
    send(ready, weights("qwen3", 1), "again")
    assert ready.call(WeightSums()) == [before]
    assert said(ready) == first
    assert ready.call(WorldSize()) == [1]
    sent = decode_from_engine(encode(Answer(3, msgspec.Raw(encode([before])))))
    assert isinstance(sent, Answer)
    assert decoder(answer_type(WeightSums())).decode(sent.result) == [before]


def test_asleep_there_are_no_weights_to_check(ready):
    ready.call(SleepEngine(1))
    for call in (WeightSums(), ResetWeights()):
        with pytest.raises(EngineDeadError, match="until it is woken"):
            ready.call(call)
    ready.call(WakeUp())
    assert ready.call(WeightSums())
