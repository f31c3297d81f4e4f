"""From ModelInferResponses to the protocol's JSON, with the bytes of tensors after it where they are wanted so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from google.protobuf.message import Message

from jaxserve.proto import kserve_pb2 as pb
from server.kserve.tensors import elements

_MATRIX = 2  # axes
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
            told["data"] = elements(output.datatype, raw)
        outputs.append(told)
    head = {"id": answer.id} if answer.id else {}
    content = _encode({"model_name": answer.model_name, "model_version": answer.model_version, **head, "outputs": outputs})
    return content + after, len(content) if after else None


def generate_reply(answer: pb.ModelInferResponse) -> dict[str, Any]:
    """An answer of Triton's generate extension: outputs by name, single elements by themselves."""
    told: dict[str, Any] = {"id": answer.id} if answer.id else {}
    told |= {"model_name": answer.model_name, "model_version": answer.model_version}
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        values = elements(output.datatype, raw)
        if len(output.shape) == _MATRIX:
            width = output.shape[1]
            told[output.name] = [values[start : start + width] for start in range(0, len(values), width)]
        else:
            told[output.name] = values[0] if len(values) == 1 else values
    return told
