"""Sampling parameters as Triton's clients give them: a JSON text, a map, and numbers that are strings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.sampling.params import NUMBERS
from jaxserve.sampling.structured import FIELD
from jaxserve.untrusted import check_json
from server.structured import KINDS, WHITESPACE, Form, form_of, ways
from server.unsupported.check import checked

_INTEGERS = frozenset({"n", "max_tokens", "min_tokens", "seed", "logprobs", *(name for name in NUMBERS if NUMBERS[name].integer)})
_NUMBERS = NUMBERS.keys() - _INTEGERS
_FLAGS = frozenset({"ignore_eos", "include_stop_str_in_output", "skip_special_tokens"})
_LISTS = frozenset({"stop", "stop_token_ids", "allowed_token_ids"})
SAMPLING = _INTEGERS | _NUMBERS | _FLAGS | _LISTS | {"logit_bias"}
FORMS = frozenset({FIELD, WHITESPACE, *KINDS})

_IS_ID = re.compile("[0-9]{1,10}")
_WORDS = {"true": True, "false": False}


def from_json(text: str, name: str) -> tuple[dict[str, Any], Form]:
    """SamplingParams' arguments from a JSON object called `name`, and the form of the output. Raises InvalidRequestError."""
    try:
        fields = json.loads(text)
        check_json(fields, text, name)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} must be a JSON object ({error})", param=name) from error
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"{name} must be a JSON object", param=name)
    kept = checked(fields, SAMPLING | FORMS, prefix=f"{name}.")
    form = form_in(kept, f"{name}.")
    return {key: sampling_value(key, value, f"{name}.{key}") for key, value in kept.items() if value is not None}, form


def form_in(fields: dict[str, Any], prefix: str) -> Form:
    """The form of the output, taken out of the fields. Lists and objects may be JSON texts. Raises InvalidRequestError."""
    given = {name: _value_of_form(name, fields.pop(name), prefix + name) for name in FORMS & fields.keys()}
    return form_of(ways(given, prefix), given.get(WHITESPACE), prefix)


def _value_of_form(key: str, value: Any, name: str) -> Any:
    kind = {FIELD: (dict, "object"), "choice": (list, "list")}.get(KINDS.get(key, key))
    if kind is None or not value:
        return value
    try:
        found = json.loads(value) if isinstance(value, str) else value
        check_json(found, value if isinstance(value, str) else "", name, any_size=True)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} must be a JSON {kind[1]} ({error})", param=name) from error
    if not isinstance(found, kind[0]):
        raise InvalidRequestError(f"{name} must be a JSON {kind[1]}", param=name)
    return found


def sampling_value(key: str, value: Any, name: str) -> Any:
    """A value for SamplingParams' argument `key`; ranges are SamplingParams' to check. Raises InvalidRequestError."""
    if key not in SAMPLING:
        raise InvalidRequestError(f"{name} is no parameter that this server knows", param=name)
    if key == "logit_bias":
        return _bias(value, name)
    if isinstance(value, float) and key in _INTEGERS and value.is_integer():
        return int(value)
    if not isinstance(value, str) or key in _LISTS:
        return value
    try:
        if key in _INTEGERS:
            return int(value)
        return float(value) if key in _NUMBERS else _WORDS[value.lower()]
    except (ValueError, KeyError) as error:
        raise InvalidRequestError(f"{name} cannot be {value[:100]!r}", param=name) from error


def plain(parameter: pb.InferParameter, name: str) -> Any:
    """The value of a parameter. Raises InvalidRequestError if it has none."""
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise InvalidRequestError(f"{name} has no value", param=name)
    return getattr(parameter, kind)


def _bias(value: Any, name: str) -> dict[Any, Any]:
    """JSON's keys are strings; SamplingParams refuses what is no token id."""
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{name} must be an object from token ids to numbers", param=name)
    return {int(key) if _IS_ID.fullmatch(key) else key: bias for key, bias in value.items()}
