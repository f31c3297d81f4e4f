"""Who a request is from: API keys, looked up by hash in a file that may change while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jaxserve.clock import Clock
from jaxserve.config.keys_file import NO_LIMITS, ApiKey, Keys, TenantLimits, load_keys
from jaxserve.errors import AuthenticationError, ConfigError
from jaxserve.types import ServiceClass

_LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose request it is.

    Attributes:
        tenant: who pays; None where anybody may say who they are.
        key_id: what usage events call the key.
        service_class: class of its requests, and the highest they may ask for; None for the server's default and any.
        models: names of models it may use; None for all.
    """

    tenant: str | None
    key_id: str
    service_class: ServiceClass | None
    models: frozenset[str] | None
    admin: bool
    limits: TenantLimits


ANYBODY = Principal(tenant=None, key_id="", service_class=None, models=None, admin=True, limits=NO_LIMITS)


class KeyRing:
    """The keys of a file, read again when it changes; a file that has become unreadable or wrong leaves the keys as they were.
    Or keys that stay.

    Args:
        source: path of the file, or the keys that stay.

    Raises ConfigError if the file is wrong from the start.
    """

    def __init__(self, source: str | Keys, clock: Clock) -> None:
        self._path = source if isinstance(source, str) else None
        self._clock = clock
        self._checked = clock.now()
        self._stamp = _stamp(source) if isinstance(source, str) else None
        self._take(load_keys(source) if isinstance(source, str) else source)

    def principal(self, credentials: Sequence[bytes]) -> Principal:
        """Whose request carries these credentials. Raises AuthenticationError."""
        self._poll()
        if not credentials:
            raise AuthenticationError("an API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        if len(set(credentials)) > 1:
            raise AuthenticationError("the request carries several API keys")
        digest = hashlib.sha256(credentials[0]).digest()
        key = self._by_digest.get(digest)
        # The digest was found by hashing it, which tells those who measure the time nothing about a key; the comparison that
        # decides takes the same time for every digest.
        if key is None or not hmac.compare_digest(digest, bytes.fromhex(key.sha256)):
            raise AuthenticationError("the API key is not known here")
        return self._unexpired(key)

    def named(self, tenant: str, key_id: str) -> Principal:
        """Whose work a tenant's key began earlier. Raises AuthenticationError if the tenant has no such key any more."""
        self._poll()
        key = self._by_name.get(key_id)
        if key is None or key.tenant != tenant:
            raise AuthenticationError(f"the API key {key_id!r} of tenant {tenant!r} is not known here any more")
        return self._unexpired(key)

    def _unexpired(self, key: ApiKey) -> Principal:
        if key.expires is not None and datetime.now(UTC) >= key.expires:
            raise AuthenticationError(f"the API key expired at {key.expires.isoformat()}")
        return self._principals[key.name]

    def _poll(self) -> None:
        now = self._clock.now()
        if self._path is None or now - self._checked < POLL_SECONDS:
            return
        self._checked = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a wrong file is complained about once
        try:
            keys = load_keys(self._path)
        except ConfigError as error:
            _LOG.error("the keys stay as they were: %s", error.message)
            return
        if keys.weights != self._weights:
            _LOG.warning("the weights of tenants in %s have changed; they take effect at the next start", self._path)
        self._take(keys)
        _LOG.info("read %d keys of %d tenants from %s", len(keys.keys), len(keys.limits), self._path)

    def _take(self, keys: Keys) -> None:
        self._weights = keys.weights
        self._by_digest: Mapping[bytes, ApiKey] = {bytes.fromhex(key.sha256): key for key in keys.keys}
        self._by_name: Mapping[str, ApiKey] = {key.name: key for key in keys.keys}  # they are unique: see load_keys
        self._principals = {key.name: _principal(key, keys) for key in keys.keys}


def _principal(key: ApiKey, keys: Keys) -> Principal:
    return Principal(key.tenant, key.name, key.service_class, key.models, key.admin, keys.limits[key.tenant])


def _stamp(path: str) -> _Stamp | None:
    """What changes when the file does; None if it cannot be had."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
