"""The gateway of one front end: makes calls of whoever may make them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from jaxserve.clock import Clock, RealClock
from jaxserve.config.keys_file import keys_of_one_tenant, load_keys
from jaxserve.config.server import ServerConfig
from jaxserve.errors import PermissionDeniedError
from server.gateway.call import Call
from server.gateway.idempotency import IdempotencyCache
from server.gateway.keys import ANYBODY, KeyRing, Principal
from server.gateway.ledger import LedgerState, LocalUsageLedger, UsageLedger
from server.gateway.recordings import Recordings
from server.gateway.routes import Access
from server.gateway.streams import ResumableStreams
from server.gateway.usage import UsageEvent, UsageLog, UsageSink, check_usage_log
from server.unsupported.notes import Lenience, names_of

_LOG = logging.getLogger(__name__)


class Gateway:
    """Authentication, limits and usage of one front end.

    Attributes:
        owner: the front end's name in the ledger.

    Args:
        keys: None where anybody is let in.
        log: where usage is written, None for nowhere.
        owner: unique among the ledger's front ends, also among those that are gone.
        grace: seconds that a request with an idempotency key goes on after its client went away.
        stream_grace: seconds that a stream which can be resumed does.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        ledger: UsageLedger,
        log: UsageLog | None,
        *,
        lenience: Lenience | None = None,
        owner: str = "",
        grace: float = 0.0,
        stream_grace: float = 0.0,
    ) -> None:
        self._keys = keys
        self._log = log
        self.ledger = ledger
        self.lenience = lenience or Lenience(RealClock())
        self.owner = owner or secrets.token_hex(8)
        recordings = Recordings(ledger, self.owner)  # one: what an account leaves running counts together
        self.answers = IdempotencyCache(recordings, grace)
        self.streams = ResumableStreams(recordings, stream_grace)

    @classmethod
    def open(
        cls,
        config: ServerConfig,
        ledger: UsageLedger | None = None,
        owner: str = "",
        on_usage_lost: Callable[[int], None] = lambda count: None,
    ) -> Gateway:
        """The gateway that the configuration asks for; the ledger is one of its own by default.

        `on_usage_lost` is told of delivered tokens that will never be in the usage log. Raises ConfigError for a file that
        cannot be used.
        """
        clock = RealClock()
        keys = _key_ring(config, clock)
        log = None if config.usage_log is None else UsageLog(config.usage_log, on_usage_lost)
        shared = ledger or LocalUsageLedger(LedgerState(clock, time.time()))
        lenience = Lenience(clock, names_of(config.ignore_unsupported))
        graces = {"grace": config.idempotency_grace, "stream_grace": config.stream_grace}
        return cls(keys, shared, log, lenience=lenience, owner=owner, **graces)

    @property
    def has_keys(self) -> bool:
        """Whether requests need an API key."""
        return self._keys is not None

    def call(self, request_id: str, credentials: Sequence[bytes], access: Access) -> Call:
        """A call that may be made with these credentials. Raises AuthenticationError or PermissionDeniedError."""
        return Call(request_id, self._principal(credentials, access), self.owner, self.ledger, self._log)

    def work(self, request_id: str, tenant: str, key_id: str, usage: UsageSink) -> Call:
        """A call for work in the background that a tenant's key began earlier, whose usage goes elsewhere for now.

        Raises AuthenticationError if the key is gone.
        """
        principal = ANYBODY if self._keys is None else self._keys.named(tenant, key_id)
        return Call(request_id, principal, self.owner, self.ledger, usage, background=True)

    def bill(self, events: Iterable[UsageEvent]) -> None:
        if self._log is not None:
            for event in events:
                self._log.add(event)

    def close(self) -> None:
        """Write down what has been used. Calls must be over."""
        if self._log is not None:
            self._log.close()

    def _principal(self, credentials: Sequence[bytes], access: Access) -> Principal:
        if self._keys is None or access == "open":
            return ANYBODY
        principal = self._keys.principal(credentials)
        if access == "admin" and not principal.admin:
            raise PermissionDeniedError("this needs an API key with admin = true")
        return principal


def _key_ring(config: ServerConfig, clock: Clock) -> KeyRing | None:
    if config.keys is not None:
        return KeyRing(config.keys, clock)
    return KeyRing(keys_of_one_tenant(config.api_key_hashes), clock) if config.api_key_hashes else None


def warn_without_keys(config: ServerConfig) -> None:
    """Say it where anybody is let in; once for a server."""
    if config.keys is None and not config.api_key_hashes:
        _LOG.warning("no API keys (--keys, --api-key): whoever reaches %s may use this server", config.host)


def check_files(config: ServerConfig) -> None:
    """Raise ConfigError for a file of keys or a usage log that cannot be used."""
    if config.keys is not None:
        keys = load_keys(config.keys)
        if keys.unsealed:
            _LOG.warning(
                "%d of %d keys in %s are not sealed: it would not be noticed if the file were cut off there; to seal them: "
                "python -m jaxserve.keys seal %s",
                keys.unsealed,
                len(keys.keys),
                config.keys,
                config.keys,
            )
    if config.usage_log is not None:
        check_usage_log(config.usage_log)
