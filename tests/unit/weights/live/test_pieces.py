"""Arrays on their way between processes, against the safetensors library and arrays that are put together by plain loops."""

from __future__ import annotations

import json
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxserve.errors import ConflictError, InvalidRequestError
from jaxserve.weights.live.pieces import FLOAT_DTYPES, Part, pieces_of, read_piece, write_piece
from jaxserve.weights.live.received import Received


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "large": rng.standard_normal((13, 11)).astype(np.float32),
        "small": rng.standard_normal((3,)).astype(ml_dtypes.bfloat16),
        "turned": rng.standard_normal((4, 6)).astype(np.float16).T,
        "one": np.float32(3.0).reshape(()),
        "none": np.zeros((0, 4), np.float32),
    }


def receiver(given: dict[str, Any], wanted: set[str] | None = None) -> Received:
    return Received({name: (array.shape, array.dtype) for name, array in given.items()}, wanted or set(given))


@pytest.mark.parametrize("piece_bytes", [1, 50, 64, 10_000])
def test_what_is_sent_comes(piece_bytes):
    given = arrays()
    pieces = list(pieces_of(given.items(), piece_bytes))
    assert len(pieces) == 1 if piece_bytes == 10_000 else len(pieces) > 5
    random.Random(3).shuffle(pieces)
    received = receiver(given)
    for piece in pieces:
        assert sum(part.elements.nbytes for part in read_piece(piece)) <= max(piece_bytes, 4)
        received.put(piece)
    assert received.bytes == received.wanted_bytes == sum(array.nbytes for array in given.values())
    taken = received.take()
    assert set(taken) == set(given)
    for name, array in given.items():
        assert taken[name].dtype == array.dtype
        assert np.array_equal(taken[name], array)


def test_a_piece_is_what_the_library_writes_and_reads():
    given = {name: array for name, array in arrays().items() if str(array.dtype) != "bfloat16"}
    (piece,) = pieces_of(given.items(), 10_000)
    loaded = safetensors.numpy.load(piece)
    assert all(np.array_equal(loaded[name], array) for name, array in given.items())
    written = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in given.items()})
    received = receiver(given)
    received.put(written)
    taken = received.take()
    assert all(np.array_equal(taken[name], array) for name, array in given.items())


def test_what_is_not_wanted_is_not_kept():
    given = arrays()
    received = receiver(given, {"small"})
    for piece in pieces_of(given.items(), 10_000):
        received.put(piece)
    assert set(received.take()) == {"small"}
    assert received.wanted_bytes == 6


def test_a_part_may_come_again_but_not_another_with_its_elements():
    given = {"v": np.arange(6, dtype=np.float32)}
    received = receiver(given)
    received.put(write_piece([Part("v", 0, np.full(3, 9, np.float32), whole=False)]))
    received.put(write_piece([Part("v", 0, given["v"][:3], whole=False)]))
    with pytest.raises(InvalidRequestError, match="elements 2 to 4 of v came already"):
        received.put(write_piece([Part("v", 2, given["v"][2:4], whole=False)]))
    with pytest.raises(ConflictError, match="v did not come, or not all of it"):
        received.take()
    received.put(write_piece([Part("v", 3, given["v"][3:], whole=False)]))
    assert np.array_equal(received.take()["v"], given["v"])
    for call in (received.take, lambda: received.put(write_piece([Part("v", 0, given["v"], whole=True)]))):
        with pytest.raises(ConflictError, match="being finished"):
            call()
    received.give_back()
    assert np.array_equal(received.take()["v"], given["v"])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("w", 0, np.zeros(6, np.float32), whole=True), "w was not announced"),
        (Part("v", 0, np.zeros(6, np.float16), whole=True), "v is float16, and was announced as float32"),
        (Part("v", 0, np.zeros((2, 3), np.float32), whole=True), r"v is \[2, 3\], and was announced as \[6\]"),
        (Part("v", 4, np.zeros(3, np.float32), whole=False), "v has 6 elements: none are at 4 to 7"),
    ],
)
def test_what_was_not_announced(part, message):
    received = receiver({"v": np.zeros(6, np.float32)})
    with pytest.raises(InvalidRequestError, match=message):
        received.put(write_piece([part]))
    assert received.bytes == 0


def piece(header: Any, elements: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + elements


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a header of 0 bytes in 0"),
        (b"\xff" * 9, "a header of"),
        (piece(b"{"), "its header"),
        (piece(b'{"\xff": 1}'), "its header"),
        (piece([1]), "its header"),
        (piece({"v": {"dtype": "F32", "shape": [1]}}), "its header"),
        (piece({"v": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}, b"1"), "v is I8"),
        (piece({"v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"123"), "v .* of 3 bytes"),
        (piece({"v": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"), "v .* has 4 bytes"),
        (piece({"v": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"), r"v \[-1\]"),
        (
            piece({"v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {"v": "-1"}}, b"1234"),
            "begins at '-1'",
        ),
        (
            piece({"v": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}, "__metadata__": {"v": "0"}}, b"1234"),
            r"is \[1, 1\]",
        ),
    ],
)
def test_what_is_no_piece(content, message):
    with pytest.raises(InvalidRequestError, match=message):
        read_piece(content)


def test_dtypes_of_weights_by_name():
    assert {name: str(dtype) for name, dtype in FLOAT_DTYPES.items()} == {
        name: name for name in ("float32", "float16", "bfloat16")
    }
