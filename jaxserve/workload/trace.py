"""Requests from a JSONL trace, one object a line, in order of arrival; whatever is wrong is named with file and line.

    {"arrival": 0.2, "prompt_tokens": 512, "output_tokens": 64, "tenant": "a", "class": "batch", "prefix": 3,
     "prefix_tokens": 128, "queue_timeout": 2.5, "timeout": 60}

`arrival` (seconds since the start), `prompt_tokens` and `output_tokens` must be there. `queue_timeout` and `timeout` are seconds
that the request may wait and may take in all. A key that is not in the example is refused: nothing looks honoured that is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxserve.engine.budgets import check_options
from jaxserve.errors import ConfigError, InvalidRequestError
from jaxserve.types import ServiceClass
from jaxserve.workload.requests import WorkloadRequest

_REQUIRED = ("arrival", "prompt_tokens", "output_tokens")
_KEYS = (*_REQUIRED, "tenant", "class", "prefix", "prefix_tokens", "queue_timeout", "timeout")
_MAX_PREFIX = 2**24 - 2  # numbers of prefixes stand for tokens


def read_trace(path: Path, max_model_len: int, default_class: ServiceClass) -> Iterator[WorkloadRequest]:
    """The trace's requests, a line at a time. Raises ConfigError for a file or a line that cannot be used.

    Args:
        path: the file.
        max_model_len: tokens of the context.
        default_class: of requests that name none.
    """
    before, number = 0.0, 0
    try:
        with path.open(encoding="utf-8") as file:
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    request = _request(number, text, max_model_len, default_class)
                    check_options(request.options)
                    if request.arrival < before:
                        raise ValueError(f"arrival {request.arrival:g} is before the line above's {before:g}")
                except (ValueError, InvalidRequestError) as error:
                    raise ConfigError(f"{path}:{line}: {error}", param="trace") from error
                yield request
                before, number = request.arrival, number + 1
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", param="trace") from error
    if number == 0:
        raise ConfigError(f"{path}: no requests", param="trace")


def _request(number: int, text: str, max_model_len: int, default_class: ServiceClass) -> WorkloadRequest:
    try:
        entry = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    prompt, output = _count(entry, "prompt_tokens", 1), _count(entry, "output_tokens", 1)
    if prompt + output > max_model_len:
        raise ValueError(f"prompt_tokens {prompt} + output_tokens {output} is more than the context's {max_model_len}")
    prefix, prefix_tokens = entry.get("prefix"), entry.get("prefix_tokens")
    if (prefix is None) != (prefix_tokens is None):
        raise ValueError("prefix and prefix_tokens need each other")
    if prefix is not None:
        if _count(entry, "prefix", 0) > _MAX_PREFIX:
            raise ValueError(f"prefix must be at most {_MAX_PREFIX}, got {prefix}")
        if _count(entry, "prefix_tokens", 1) >= prompt:
            raise ValueError(f"prefix_tokens {prefix_tokens} must be less than prompt_tokens {prompt}")
    return WorkloadRequest(
        number=number,
        arrival=_time(entry["arrival"]),
        prompt_tokens=prompt,
        output_tokens=output,
        service_class=_class(entry, default_class),
        tenant=_tenant(entry),
        prefix=prefix,
        prefix_tokens=prefix_tokens or 0,
        queue_timeout=entry.get("queue_timeout"),
        timeout=entry.get("timeout"),
    )


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"arrival must be seconds of at least 0, got {json.dumps(value)}")
    return float(value)


def _count(entry: dict[str, Any], key: str, low: int) -> int:
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{key} must be a whole number of at least {low}, got {json.dumps(value)}")
    return value


def _class(entry: dict[str, Any], default: ServiceClass) -> ServiceClass:
    value = entry.get("class", default)
    if value not in tuple(ServiceClass):
        raise ValueError(f"class must be one of {', '.join(ServiceClass)}, got {json.dumps(value)}")
    return ServiceClass(value)


def _tenant(entry: dict[str, Any]) -> str:
    value = entry.get("tenant", "default")
    if not isinstance(value, str):
        raise ValueError(f"tenant must be a string, got {json.dumps(value)}")
    return value
