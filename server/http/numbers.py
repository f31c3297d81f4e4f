"""Numbers as other servers take them: 5.0 and "5" where an integer is wanted, "0.5" where a number is; true is neither."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_INTEGER = re.compile(r"-?[0-9]{1,20}(\.0{0,20})?")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?")
_EXACT = 2.0**63  # floats beyond are no integers that anybody meant

# Marks a number in a schema that may be sent as a text too: server.http.openapi says so with a pattern of its range.
NUMERAL = "x-numeral"


def integer(value: Any) -> Any:
    """The integer that a value stands for; what is none comes back as it is."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def number(value: Any) -> Any:
    """The number that a value stands for; what is none comes back as it is."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return value


Integer = Annotated[int, BeforeValidator(integer), Field(json_schema_extra={NUMERAL: True})]
Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False, json_schema_extra={NUMERAL: True})]
