"""Fields of several types: what is said of a value that is none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError


def described(what: str) -> WrapValidator:
    """One message for a union, where pydantic would list how each of its members failed."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("wrong_type", "must be {what}", {"what": what}) from error

    return WrapValidator(validate)
