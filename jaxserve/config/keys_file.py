"""Reads a file of API keys: who may use a server, and how much of it.

    [[key]]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    tenant = "acme"
    class = "interactive_free"
    tpm = 100_000

It holds hashes, never keys. Limits and weight are the tenant's: where it has several keys they stand in any one of them, or are
the same in all. A file that was cut off may lack a key, or the limits of one: seals tell.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from jaxserve.config.policies import MAX_WEIGHT, MIN_WEIGHT, Policies, TenantPolicy
from jaxserve.config.seals import check_seals, sealed, unsealed
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

ONE_TENANT = "default"  # whose keys of a command line are
_ID_DIGITS = 12  # of the hash, for a key without an id

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Value = TypeVar("Value", int, float)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"service_class": "class"}):
    """One key. Fields that are left out allow everything.

    Attributes:
        sha256: SHA-256 of the key, 64 hexadecimal digits.
        tenant: whose it is.
        id: what usage events call the key; by default the first digits of its hash.
        service_class: class of its requests; they may ask for a lower one, never for a higher.
        models: names of models it may use.
        expires: from when on it is refused; a date and time with a zone.
        admin: whether it may do what operators do.
        weight: the tenant's share of token-work relative to other tenants'.
        rpm, tpm: requests and tokens a minute, of the tenant.
        max_concurrent: requests of the tenant that run at the same time.
        daily_tokens: tokens of the tenant a day, in UTC.
    """

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    id: str = ""
    service_class: ServiceClass | None = None
    models: frozenset[str] | None = None
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    admin: bool = False
    weight: Annotated[float, msgspec.Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)] | None = None
    rpm: Count | None = None
    tpm: Count | None = None
    max_concurrent: Count | None = None
    daily_tokens: Count | None = None

    @property
    def name(self) -> str:
        """What usage events call the key."""
        return self.id or self.sha256[:_ID_DIGITS]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may take; None for no limit.

    Attributes:
        rpm, tpm: requests and tokens a minute.
        max_concurrent: requests at the same time.
        daily_tokens: tokens a day, in UTC.
    """

    rpm: int | None = None
    tpm: int | None = None
    max_concurrent: int | None = None
    daily_tokens: int | None = None

    @property
    def any(self) -> bool:
        return self != NO_LIMITS

    @property
    def per_minute(self) -> bool:
        return self.rpm is not None or self.tpm is not None


NO_LIMITS = TenantLimits()


@dataclass(frozen=True, slots=True)
class Keys:
    """A file's content.

    Attributes:
        keys: in the file's order.
        limits: by tenant.
        weights: by tenant, of those that have one.
        unsealed: how many keys no seal holds together.
    """

    keys: tuple[ApiKey, ...]
    limits: Mapping[str, TenantLimits]
    weights: Mapping[str, float]
    unsealed: int = 0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    key: list[ApiKey]


def load_keys(path: str) -> Keys:
    """Read a file of keys. Raises ConfigError naming the file and what is wrong in it, also for one that was cut off."""
    try:
        content = Path(path).read_bytes()
        try:
            count = check_seals(content)
        except ValueError as error:
            raise ValueError(f"{error}; if it is as it should be: python -m jaxserve.keys seal {path}") from error
        keys = _read(content)
        return replace(keys, unsealed=max(len(keys.keys) - count, 0))
    except OSError as error:
        raise ConfigError(f"keys: cannot read {path}: {error.strerror}", param="keys") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # one of the file's content, of TOML or of ours
        raise ConfigError(f"keys: {path}: {error}", param="keys") from error


def seal_keys(path: str) -> Keys:
    """Put one seal on a whole file of keys, in place of those that it has. Raises ConfigError for a file that cannot be used."""
    target = Path(path).resolve()  # where a link leads, or it would be replaced
    try:
        content = unsealed(target.read_bytes())
        keys = _read(content)
        new = sealed(content.decode(), len(keys.keys))
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete_on_close=False) as file:
            file.write(new.encode())
            file.flush()
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            os.fsync(file.fileno())
            Path(file.name).replace(target)
            return keys
    except OSError as error:
        raise ConfigError(f"keys: cannot seal {path}: {error.strerror}", param="keys") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"keys: {path}: {error}", param="keys") from error


def _read(content: bytes) -> Keys:
    keys = msgspec.toml.decode(content, type=_File, strict=True).key
    _check_unique(keys)
    return _keys(keys)


def keys_of_one_tenant(hashes: Iterable[str]) -> Keys:
    """Keys without limits, which may do what operators do, of the tenant "default"; from the SHA-256 of each."""
    return _keys([ApiKey(sha256=digest, tenant=ONE_TENANT, admin=True) for digest in hashes])


def with_weights(policies: Policies, weights: Mapping[str, float]) -> Policies:
    """The policies with the weights that a file of keys gives to tenants.

    Raises ConfigError where the policies give another; a weight of 1 is as good as none.
    """
    tenants = dict(policies.tenants)
    for tenant, weight in weights.items():
        policy = policies.of_tenant(tenant)
        own = policies.tenants.get(tenant, TenantPolicy()).weight
        if own not in (TenantPolicy().weight, weight):
            raise ConfigError(f"keys: weight of tenant {tenant!r} is {weight:g}, but {own:g} in the policies", param="keys")
        tenants[tenant] = replace(policy, weight=weight)
    return replace(policies, tenants=tenants)


def _keys(keys: Iterable[ApiKey]) -> Keys:
    by_tenant: dict[str, list[ApiKey]] = {}
    for key in keys:
        by_tenant.setdefault(key.tenant, []).append(key)
    limits, weights = {}, {}
    for tenant, own in by_tenant.items():
        limits[tenant] = TenantLimits(
            rpm=_one(tenant, "rpm", (key.rpm for key in own)),
            tpm=_one(tenant, "tpm", (key.tpm for key in own)),
            max_concurrent=_one(tenant, "max_concurrent", (key.max_concurrent for key in own)),
            daily_tokens=_one(tenant, "daily_tokens", (key.daily_tokens for key in own)),
        )
        weight = _one(tenant, "weight", (key.weight for key in own))
        if weight is not None:
            weights[tenant] = weight
    return Keys(tuple(keys), limits, weights)


def _one(tenant: str, name: str, values: Iterable[Value | None]) -> Value | None:
    given = sorted({value for value in values if value is not None})
    if len(given) > 1:
        raise ValueError(f"{name} of tenant {tenant!r} is given as {' and '.join(f'{value:g}' for value in given)}")
    return given[0] if given else None


def _check_unique(keys: Iterable[ApiKey]) -> None:
    seen: dict[str, str] = {}
    for key in keys:
        if not key.tenant.isprintable():
            raise ValueError(f"tenant {key.tenant!r} must be printable")
        for value, what in ((key.sha256, "sha256"), (f"id {key.name}", "id")):
            if value in seen:
                raise ValueError(f"two keys have the {what} {value.removeprefix('id ')}")
            seen[value] = what
