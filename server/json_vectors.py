"""JSON of arrays, written without a Python object per value."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

_CHUNK = 16_384  # values that are Python floats at a time
_encode_list = msgspec.json.Encoder().encode


def json_array(values: np.ndarray[Any, Any]) -> bytes:
    """An array of one or more axes as nested JSON lists."""
    if values.ndim > 1:
        return b"[" + b",".join(json_array(row) for row in values) + b"]"
    chunks = (values[start : start + _CHUNK].tolist() for start in range(0, len(values), _CHUNK))
    return b"[" + b",".join(_encode_list(chunk)[1:-1] for chunk in chunks) + b"]"


def _write_array(value: Any) -> msgspec.Raw:
    if isinstance(value, np.ndarray):
        return msgspec.Raw(json_array(value))
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


encode = msgspec.json.Encoder(enc_hook=_write_array).encode
"""Content as JSON: arrays as lists, bytes as base64."""
