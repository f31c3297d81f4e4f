"""From ModelInferResponses to the protocol's JSON, with the bytes of tensors after it where they are wanted so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import Message

from jaxserve.proto import kserve_pb2 as pb
from server.json_vectors import json_array
from server.kserve.tensors import NUMPY_TYPES, elements

_encode = msgspec.json.Encoder().encode


def plain(message: Message) -> dict[str, Any]:
    """A message as the protocol's JSON has it: every field under its own name, numbers as numbers, enumerations by name."""
    return {field.name: _value(getattr(message, field.name), field.enum_type) for field in message.DESCRIPTOR.fields}


def _value(value: Any, words: Any) -> Any:
    """A field's value; `words` describes its enumeration, if it is of one."""
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, str | bool | int | float):
        return value if words is None else words.values_by_number[int(value)].name
    return [_value(one, words) for one in value]


def infer_reply(answer: pb.ModelInferResponse, binary: Collection[str] | None) -> tuple[bytes, int | None]:
    """The body of an answer, and how long the JSON in it is if more comes after it.

    Args:
        answer: of one request.
        binary: outputs that are wanted as bytes; None for all.
    """
    outputs, after = [], b""
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        told: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if binary is None or output.name in binary:
            told["parameters"] = {"binary_data_size": len(raw)}
            after += raw
        else:
            told["data"] = _list(output.datatype, raw, (-1,))
        outputs.append(told)
    head = {"id": answer.id} if answer.id else {}
    content = _encode({"model_name": answer.model_name, "model_version": answer.model_version, **head, "outputs": outputs})
    return content + after, len(content) if after else None


def generate_reply(answer: pb.ModelInferResponse) -> dict[str, Any]:
    """An answer of Triton's generate extension: outputs by name, single elements by themselves."""
    told: dict[str, Any] = {"id": answer.id} if answer.id else {}
    told |= {"model_name": answer.model_name, "model_version": answer.model_version}
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if list(output.shape) == [1]:
            (told[output.name],) = elements(output.datatype, raw)
        else:
            told[output.name] = _list(output.datatype, raw, output.shape)
    return told


def _list(datatype: str, raw: bytes, shape: Sequence[int]) -> Any:
    """The elements of a tensor as JSON has them: numbers are written already."""
    if datatype not in NUMPY_TYPES:
        return elements(datatype, raw)
    return msgspec.Raw(json_array(np.frombuffer(raw, NUMPY_TYPES[datatype]).reshape(shape)))
