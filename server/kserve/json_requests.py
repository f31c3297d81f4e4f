"""From the protocol's JSON, and the bytes of tensors after it, to the ModelInferRequest that says the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb
from server.json_values import check_num_values, read_value
from server.kserve import pooling
from server.kserve.requests import INPUTS
from server.kserve.tensors import texts

_BINARY_SIZE = "binary_data_size"
_ALL_BINARY, _BINARY = "binary_data_output", "binary_data"
_KNOWN = {**pooling.INPUTS, **INPUTS}
_MAX_AXES = 8  # of a tensor's shape
_MISSING = re.compile("Object missing required field `(.+)`")
_MAX_INT, _MIN_INT = 2**63 - 1, -(2**63)

Body = TypeVar("Body")


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: Any = None
    parameters: dict[str, Any] = {}


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Infer(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


def read_json(content: bytes, kind: type[Body]) -> Body:
    """Decode a body. Raises InvalidRequestError naming the field that is wrong."""
    check_num_values(content)
    try:
        return msgspec.convert(read_value(content), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"the body is not as it must be: {error}", param=_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error


def _place(message: str) -> str | None:
    """The field that an error of msgspec's is about; None if it is the whole body."""
    what, _, path = message.partition(" - at `$")
    path = path.partition("[...]")[0].rstrip("`").lstrip(".")  # [...]: some member, whose name it does not say
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
    return path or None


def infer_request(
    model: str, version: str, body: bytes, json_bytes: int | None
) -> tuple[pb.ModelInferRequest, frozenset[str] | None]:
    """A request, and the names of outputs that are wanted as bytes, None for all.

    Args:
        body: JSON, and after it the contents of tensors that say how long theirs are.
        json_bytes: how long the JSON is; None for all of the body.

    Raises InvalidRequestError naming what is wrong.
    """
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise InvalidRequestError(
            f"Inference-Header-Content-Length must be between 0 and the body's {len(body)} bytes, got {json_bytes}",
            param="Inference-Header-Content-Length",
        )
    given = read_json(body if json_bytes is None else body[:json_bytes], _Infer)
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=given.id)
    binary = memoryview(b"" if json_bytes is None else body[json_bytes:])
    for one in given.inputs:
        size = one.parameters.get(_BINARY_SIZE)
        if size is None:
            raw = _contents(one)
        elif isinstance(size, int) and 0 <= size <= len(binary):
            raw, binary = bytes(binary[:size]), binary[size:]
        else:
            raise InvalidRequestError(
                f"{one.name}: {_BINARY_SIZE} must be between 0 and the {len(binary)} bytes that are left, got {size!r}",
                param=one.name,
            )
        try:
            request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        except ValueError as error:
            raise InvalidRequestError(f"{one.name}: shape is out of range", param=one.name) from error
        request.raw_input_contents.append(raw)
    if binary:
        raise InvalidRequestError(f"{len(binary)} bytes after the JSON belong to no input", param=_BINARY_SIZE)
    for output in given.outputs:
        request.outputs.add(name=output.name)
    wants_all = given.parameters.pop(_ALL_BINARY, False)
    _fill(request, given.parameters.items())
    if wants_all:
        return request, None
    return request, frozenset(output.name for output in given.outputs if output.parameters.get(_BINARY))


def generate_request(model: str, version: str, body: bytes) -> pb.ModelInferRequest:
    """A request of Triton's generate extension: inputs and parameters by name, in the body itself or in its `parameters`.

    Lists and objects, such as `stop`, are sampling parameters. Raises InvalidRequestError naming what is wrong.
    """
    given = read_json(body, dict[str, Any])
    nested = given.pop("parameters", {})
    if not isinstance(nested, dict):
        raise InvalidRequestError("parameters must be an object", param="parameters")
    for name in nested.keys() & given.keys():
        raise InvalidRequestError(f"{name} is in parameters too", param=name)
    identity = given.pop("id", "")
    fields = {**given, **nested}
    request = pb.ModelInferRequest(
        model_name=model, model_version=version, id=identity if isinstance(identity, str) else str(identity)
    )
    structured = {name: fields.pop(name) for name in list(fields) if name not in _KNOWN and isinstance(fields[name], list | dict)}
    if isinstance(fields.get("sampling_parameters"), dict):  # an object says the same as its text
        fields["sampling_parameters"] = json.dumps(fields["sampling_parameters"])
    if structured:
        if "sampling_parameters" in fields:
            raise InvalidRequestError(
                f"{min(structured)} belongs into sampling_parameters, which is given", param=min(structured)
            )
        fields["sampling_parameters"] = json.dumps(structured)
    for name, datatype in _KNOWN.items():
        if name in fields:
            value = fields.pop(name)
            data = value if isinstance(value, list) else [value]
            one = _Input(name, datatype, [len(data)], data)
            request.inputs.add(name=name, datatype=one.datatype, shape=one.shape)
            request.raw_input_contents.append(_contents(one))
    _fill(request, ((name, value) for name, value in fields.items() if value is not None))
    return request


def _contents(tensor: _Input) -> bytes:
    """Raw contents of an input's `data`; nothing for an input that is not known, which is told later."""
    if tensor.name not in _KNOWN:
        return b""
    if len(tensor.shape) > _MAX_AXES:  # multiplying thousands of sizes takes seconds
        what = f"{tensor.name}: shape must have at most {_MAX_AXES} axes, got {len(tensor.shape)}"
        raise InvalidRequestError(what, param=tensor.name)
    elements, count = list(_flat(tensor.data)), math.prod(tensor.shape)
    if len(elements) != count:
        named = "one element" if count == 1 else f"{count} elements, as its shape says,"
        raise InvalidRequestError(f"{tensor.name} must have {named} in data, got {len(elements)}", param=tensor.name)
    wanted = str if _KNOWN[tensor.name] == "BYTES" else bool
    for element in elements:
        if not isinstance(element, wanted):
            told = "a string" if wanted is str else "true or false"
            raise InvalidRequestError(f"{tensor.name} must be {told}", param=tensor.name)
    return texts(elements) if wanted is str else bytes(elements)


def _flat(data: Any) -> Iterator[Any]:
    for item in data if isinstance(data, list) else ():
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item


def _fill(request: pb.ModelInferRequest, parameters: Any) -> None:
    """Give the request its parameters. Raises InvalidRequestError for a value that is none of the protocol's."""
    for name, value in parameters:
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, int) and _MIN_INT <= value <= _MAX_INT:
            request.parameters[name].int64_param = value
        elif isinstance(value, float):
            request.parameters[name].double_param = value
        elif isinstance(value, str):
            request.parameters[name].string_param = value
        else:
            where = f"parameters.{name[:100]}"
            raise InvalidRequestError(f"{where} must be a string, a number or a boolean", param=where)
