"""Reads a policies file.

    {"classes": {"batch": {"kv_share": 0.5, "queue_timeout": null}},
     "tenants": {"*": {"kv_share": 0.3}, "acme": {"weight": 4, "prefill_reserve": 0.25}}}

Classes and tenants that the file does not name have the defaults; "*" sets those of all other tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.config.keys_file import load_keys, with_weights
from jaxserve.config.policies import ClassPolicy, Policies, TenantPolicy
from jaxserve.errors import ConfigError, InvalidRequestError
from jaxserve.untrusted import check_json


def load_policies(path: str | None, keys_path: str | None = None) -> Policies:
    """Read a policies file; None gives the defaults. Weights of tenants in a file of keys join them.

    Raises ConfigError naming the file and what is wrong in it, or that contradicts the other.
    """
    policies = _load(path)
    return policies if keys_path is None else with_weights(policies, load_keys(keys_path).weights)


def _load(path: str | None) -> Policies:
    if path is None:
        return Policies()
    try:
        content = Path(path).read_bytes()
        value = msgspec.json.decode(content)
        check_json(value, content)
        policies = msgspec.json.decode(content, type=Policies, strict=True)
    except OSError as error:
        raise ConfigError(f"policies: cannot read {path}: {error.strerror}", param="policies") from error
    except InvalidRequestError as error:
        raise ConfigError(f"policies: {path}: {error.message}", param="policies") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # a validation error is one
        cause = error.__cause__
        raise ConfigError(
            f"{cause}" if isinstance(cause, ConfigError) else f"policies: {path}: {error}", param="policies"
        ) from error
    _refuse_unknown(path, value)
    return policies


def _refuse_unknown(path: str, content: Mapping[str, Any]) -> None:
    places: list[tuple[str, Mapping[str, Any], type[Any]]] = [("the file", content, Policies)]
    places += [(f"classes.{name}", policy, ClassPolicy) for name, policy in content.get("classes", {}).items()]
    places += [(f"tenants.{name}", policy, TenantPolicy) for name, policy in content.get("tenants", {}).items()]
    for place, given, kind in places:
        unknown = given.keys() - {item.name for item in fields(kind)}
        if unknown:
            raise ConfigError(f"policies: {path}: unknown in {place}: {', '.join(sorted(unknown))}", param="policies")
