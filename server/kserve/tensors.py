"""Tensors of the Open Inference Protocol as they travel: little-endian, each BYTES element after its length."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb

_LENGTH = struct.Struct("<I")

# Format of struct, by datatype.
_NUMBERS = {"FP32": "f", "UINT32": "I"}
NUMPY_TYPES = {"FP32": "<f4", "UINT32": "<u4"}

Tensor = pb.ModelInferRequest.InferInputTensor
Element = TypeVar("Element", bool, bytes)


def inputs_of(request: pb.ModelInferRequest) -> dict[str, tuple[Tensor, bytes | None]]:
    """The inputs by name, each with its raw contents if the request has such. Raises InvalidRequestError."""
    raw: Sequence[bytes | None] = request.raw_input_contents
    if not raw:
        raw = [None] * len(request.inputs)
    elif len(raw) != len(request.inputs):
        raise InvalidRequestError(
            f"raw_input_contents must have one entry an input, of which there are {len(request.inputs)}, got {len(raw)}",
            param="raw_input_contents",
        )
    found: dict[str, tuple[Tensor, bytes | None]] = {}
    for tensor, contents in zip(request.inputs, raw, strict=True):
        if tensor.name in found:
            raise InvalidRequestError(f"{tensor.name} must be given once", param=tensor.name)
        found[tensor.name] = (tensor, contents)
    return found


def one_bool(tensor: Tensor, raw: bytes | None) -> bool:
    """The only element of a BOOL tensor. Raises InvalidRequestError naming the tensor."""
    _check(tensor, "BOOL")
    if raw is None:
        return bool(_only(tensor, tensor.contents.bool_contents))
    if len(raw) != 1:
        raise InvalidRequestError(f"{tensor.name} must be one byte, got {len(raw)}", param=tensor.name)
    return raw != b"\0"


def one_text(tensor: Tensor, raw: bytes | None) -> str:
    """The only element of a BYTES tensor, as UTF-8. Raises InvalidRequestError naming the tensor."""
    _check(tensor, "BYTES")
    if raw is None:
        text: bytes = _only(tensor, tensor.contents.bytes_contents)
    else:
        text = raw[_LENGTH.size :]
        if len(raw) < _LENGTH.size or _LENGTH.unpack_from(raw)[0] != len(text):
            raise InvalidRequestError(f"{tensor.name} must be one element: its length in 4 bytes, then it", param=tensor.name)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{tensor.name} must be UTF-8: {error.reason}", param=tensor.name) from error


def texts_of(tensor: Tensor, raw: bytes | None) -> list[str]:
    """The elements of a BYTES tensor of one axis, or of one column, as UTF-8. Raises InvalidRequestError naming the tensor."""
    if tensor.datatype != "BYTES":
        raise InvalidRequestError(f"{tensor.name} must be of datatype BYTES, got {tensor.datatype!r}", param=tensor.name)
    found = list(tensor.contents.bytes_contents) if raw is None else _split(tensor, raw)
    if list(tensor.shape) not in ([len(found)], [len(found), 1]):
        raise InvalidRequestError(
            f"{tensor.name} must be of shape [{len(found)}], as it has elements, got {list(tensor.shape)[:8]}", param=tensor.name
        )
    try:
        return [element.decode() for element in found]
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{tensor.name} must be UTF-8: {error.reason}", param=tensor.name) from error


def _split(tensor: Tensor, raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        size = _LENGTH.unpack_from(raw, at)[0] if at + _LENGTH.size <= len(raw) else len(raw)
        at += _LENGTH.size + size
        if at > len(raw):
            raise InvalidRequestError(f"{tensor.name} must be elements, each after its length in 4 bytes", param=tensor.name)
        found.append(raw[at - size : at])
    return found


def texts(elements: Sequence[str]) -> bytes:
    """Raw contents of a BYTES tensor."""
    encoded = [element.encode() for element in elements]
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def numbers(datatype: str, elements: Sequence[float]) -> bytes:
    """Raw contents of an FP32 or UINT32 tensor."""
    return struct.pack(f"<{len(elements)}{_NUMBERS[datatype]}", *elements)


def elements(datatype: str, raw: bytes) -> list[Any]:
    """What raw contents of a BYTES, FP32 or UINT32 tensor of ours hold."""
    if datatype in _NUMBERS:
        return list(struct.unpack(f"<{len(raw) // 4}{_NUMBERS[datatype]}", raw))
    found, at = [], 0
    while at < len(raw):
        (size,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + size
        found.append(raw[at - size : at].decode())
    return found


def _check(tensor: Tensor, datatype: str) -> None:
    if tensor.datatype != datatype:
        raise InvalidRequestError(f"{tensor.name} must be of datatype {datatype}, got {tensor.datatype!r}", param=tensor.name)
    if any(size != 1 for size in tensor.shape):
        raise InvalidRequestError(f"{tensor.name} must be of shape [1], got {list(tensor.shape)[:8]}", param=tensor.name)


def _only(tensor: Tensor, elements: Sequence[Element]) -> Element:
    if len(elements) != 1:
        raise InvalidRequestError(f"{tensor.name} must have one element, got {len(elements)}", param=tensor.name)
    return elements[0]
