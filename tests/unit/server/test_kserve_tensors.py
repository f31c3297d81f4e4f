"""Tensors of the Open Inference Protocol: what is read and written, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb
from server.kserve.json_requests import infer_request
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


def infer(**changes: Any) -> Any:
    one = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"], **changes}
    return infer_request("m", "", json.dumps({"inputs": [one]}).encode(), None)


@pytest.mark.parametrize("axes", [9, 300, 100_000])
def test_a_shape_of_many_axes_is_refused_before_its_product_is_computed(axes: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"shape must have at most 8 axes, got {axes}") as refused:
        infer(shape=[2**62] * axes)
    assert refused.value.param == "text_input"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"id": 5, "inputs": []}', "id"),
        (b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1.5]}]}', "inputs[0].shape[0]"),
        (b'{"inputs": [{"name": "x", "datatype": "BYTES"}]}', "inputs[0].shape"),
        (b"{}", "inputs"),
        (b'{"inputs": [], "parameters": {"a": 1e400}}', "parameters.a"),
        (b'{"inputs": [], "parameters": {"a": "\\ud800"}}', "parameters.a"),
        (b'{"inputs": [], "parameters": {"a": NaN}}', "parameters.a"),
        (b"[]", None),
    ],
)
def test_errors_of_a_json_body_name_the_field(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        infer_request("m", "", body, None)
    assert refused.value.param == param


def test_a_json_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidRequestError, match="at most 524288 values"):
        infer_request("m", "", b"[" + b"," * 600_000, None)
