"""Numbers as other servers take them: 5.0 and "5" where an integer is wanted, "0.5" where a number is; true is neither."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_DIGITS = 20  # of a text at most, before a point and after it
_INTEGER = re.compile(rf"-?(0|[1-9][0-9]{{0,{_DIGITS - 1}}})")
_NUMBER = re.compile(rf"-?(0|[1-9][0-9]{{0,{_DIGITS - 1}}})(\.[0-9]{{1,{_DIGITS}}})?")
_FRACTION, _NO_FRACTION = rf"(\.[0-9]{{1,{_DIGITS}}})?", rf"(\.0{{1,{_DIGITS}}})?"

# Marks a number in a schema that may be sent as a text too: `numeral` says with which pattern.
NUMERAL = "x-numeral"


def integer(value: Any) -> Any:
    """The integer that a value stands for; what is none comes back as it is."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def number(value: Any) -> Any:
    """The number that a value stands for; what is none comes back as it is."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return value


def integers(value: Any) -> Any:
    """The integers that a list's floats stand for; a list without floats, of a million ids as often as not, is not copied."""
    if isinstance(value, list) and float in set(map(type, value)):
        return [integer(item) if isinstance(item, float) else item for item in value]
    return value


Integer = Annotated[int, BeforeValidator(integer), Field(json_schema_extra={NUMERAL: True})]
Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False, json_schema_extra={NUMERAL: True})]


def numeral(kind: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of texts that stand for an "integer" or a "number" within limits, given in JSON Schema's words.

    It covers what the limits allow but for sizes of which nobody writes every digit.
    """
    low, high = limits.get("minimum", limits.get("exclusiveMinimum")), limits.get("maximum")
    whole = "|".join(_up_to(int(high))) if high is not None and high < 10.0 ** (_DIGITS - 1) else "0|[1-9][0-9]{0,17}"
    if kind == "integer":
        pattern = "|".join(_from(int(low), int(high or 10 ** (_DIGITS - 1)))) if low is not None and low > 0 else whole
        pattern = f"-?({pattern})" if low is None or low < -1 else f"-1|{pattern}" if low == -1 else pattern
        return _text(pattern)
    if limits.get("exclusiveMinimum") == 0:
        above = "|".join(_up_to(int(high) - 1)).removeprefix("0|") if high is not None and high < 1e9 else "[1-9][0-9]{0,8}"
        most = f"|{int(high)}{_NO_FRACTION}" if high is not None and high < 1e9 else ""
        return _text(rf"0\.[0-9]{{0,9}}[1-9][0-9]{{0,9}}{most}" + (f"|({above}){_FRACTION}" if above not in ("", "0") else ""))
    if high is None:
        return _text(f"({whole}){_FRACTION}")
    pattern = f"({'|'.join(_up_to(int(high) - 1))}){_FRACTION}|{int(high)}{_NO_FRACTION}"
    return _text(f"-?({pattern})" if low is not None and low < 0 else pattern)


def up_to(most: int) -> str:
    """A pattern of the integers from 0 to `most`, without signs or leading zeros."""
    return f"^({'|'.join(_up_to(most))})$"


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})$", NUMERAL: True}


def _up_to(most: int) -> Iterator[str]:
    digits = str(most)
    yield "0"
    if len(digits) > 1:
        shorter = len(digits) - 2
        yield "[1-9]" + (f"[0-9]{{0,{shorter}}}" if shorter else "")
    for place, digit in enumerate(digits):  # those that differ here first
        least, rest = 0 if place else 1, len(digits) - place - 1
        if int(digit) > least:
            yield digits[:place] + _one_of(least, int(digit) - 1) + (f"[0-9]{{{rest}}}" if rest else "")
    if most:
        yield digits


def _from(least: int, most: int) -> Iterator[str]:
    """From the first round number on that is no less than `least`."""
    digits = str(least)
    first = int(digits[0]) + (0 if int(digits[1:] or 0) == 0 else 1)
    if first <= 9:
        yield _one_of(first, 9) + (f"[0-9]{{{len(digits) - 1}}}" if len(digits) > 1 else "")
    for pattern in _up_to(most):
        if pattern.startswith("[1-9]"):  # those with fewer digits than `most`
            if len(str(most)) > len(digits) + 1:
                yield f"[1-9][0-9]{{{len(digits)},{len(str(most)) - 2}}}"
        elif pattern != "0" or least == 0:
            yield pattern


def _one_of(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"
