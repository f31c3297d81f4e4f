"""JSON of bodies, as every endpoint reads it: bounded, and refused by the place of a value that nothing further in can take."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.untrusted import check_json, decode_json

# Reading values blocks the server's event loop: this many take a few hundredths of a second. A member of an object takes as long
# as some values of a list.
MAX_VALUES = 524_288
_A_MEMBER = 3


def check_num_values(body: bytes) -> None:
    """Raise InvalidRequestError for a body with more than MAX_VALUES values."""
    values = body.count(b",") + _A_MEMBER * body.count(b":")
    if values > MAX_VALUES:
        raise InvalidRequestError(
            f"the body must hold at most {MAX_VALUES} values, and has {values} by its commas, and colons, which count as "
            f"{_A_MEMBER}"
        )


def read_value(body: bytes) -> Any:
    """The value of a body.

    Raises InvalidRequestError naming the place of a value beyond the bounds of `check_json`, and msgspec.DecodeError,
    UnicodeDecodeError or RecursionError for a body that is not JSON.
    """
    value, text = decode_json(body)
    check_json(value, text)
    if isinstance(text, str):
        raise msgspec.DecodeError("JSON is malformed")
    return value
