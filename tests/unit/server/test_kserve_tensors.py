"""Tensors of the Open Inference Protocol: what is read and written, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb
from server.kserve.tensors import inputs_of, numbers, one_bool, one_text, texts


def tensor(datatype: str, shape: tuple[int, ...] = (1,), **contents: Any) -> Any:
    return pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape, contents=contents)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_elements_are_read_from_either_place(shape: tuple[int, ...]) -> None:
    assert one_text(tensor("BYTES", shape), b"\x03\0\0\0h\xc3\xa9") == "hé"
    assert one_text(tensor("BYTES", shape, bytes_contents=["hé".encode()]), None) == "hé"
    assert one_text(tensor("BYTES", shape), b"\0\0\0\0") == ""
    for value in (True, False):
        assert one_bool(tensor("BOOL", shape), bytes([value])) is value
        assert one_bool(tensor("BOOL", shape, bool_contents=[value]), None) is value


@pytest.mark.parametrize(
    ("given", "raw", "words"),
    [
        (tensor("BOOL"), b"\0\0\0\0", "datatype BYTES, got 'BOOL'"),
        (tensor("BYTES", (2,)), b"\0\0\0\0\0\0\0\0", r"shape \[1\], got \[2\]"),
        (tensor("BYTES", (0,)), b"", r"shape \[1\]"),
        (tensor("BYTES", (-1, -1)), b"\0\0\0\0", r"shape \[1\]"),
        (tensor("BYTES"), b"", "one element"),
        (tensor("BYTES"), b"\0\0\0", "one element"),
        (tensor("BYTES"), b"\x02\0\0\0h", "one element"),
        (tensor("BYTES"), b"\x01\0\0\0hi", "one element"),
        (tensor("BYTES"), b"\xff\xff\xff\xffh", "one element"),
        (tensor("BYTES"), b"\x01\0\0\0\xff", "UTF-8"),
        (tensor("BYTES"), None, "one element, got 0"),
        (tensor("BYTES", bytes_contents=[b"a", b"b"]), None, "one element, got 2"),
    ],
)
def test_texts_that_are_refused(given: Any, raw: bytes | None, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^x must .*{words}") as info:
        one_text(given, raw)
    assert info.value.param == "x"


@pytest.mark.parametrize("raw", [b"", b"\0\0"])
def test_bools_are_one_byte(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=f"one byte, got {len(raw)}"):
        one_bool(tensor("BOOL"), raw)


def test_raw_contents_belong_to_inputs_in_order() -> None:
    request = pb.ModelInferRequest(inputs=[{"name": "a"}, {"name": "b"}], raw_input_contents=[b"1", b"2"])
    assert {name: raw for name, (_, raw) in inputs_of(request).items()} == {"a": b"1", "b": b"2"}
    del request.raw_input_contents[:]
    assert {name: raw for name, (_, raw) in inputs_of(request).items()} == {"a": None, "b": None}
    request.raw_input_contents.append(b"1")
    with pytest.raises(InvalidRequestError, match="one entry an input, of which there are 2, got 1"):
        inputs_of(request)


def test_an_input_is_given_once() -> None:
    with pytest.raises(InvalidRequestError, match="a must be given once"):
        inputs_of(pb.ModelInferRequest(inputs=[{"name": "a"}, {"name": "a"}]))


def test_what_is_written() -> None:
    assert texts(["hé", ""]) == b"\x03\0\0\0h\xc3\xa9\0\0\0\0"
    assert np.array_equal(np.frombuffer(numbers("FP32", [-0.5, 2.0]), "<f4"), [-0.5, 2.0])
    assert np.array_equal(np.frombuffer(numbers("UINT32", [1, 2**32 - 1]), "<u4"), [1, 2**32 - 1])
