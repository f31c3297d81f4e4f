"""How a server is loaded; flags of `python -m jaxserve.bench serving` come from these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from urllib.parse import urlsplit

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """The server, and how requests are sent to it."""

    base_url: str = setting("http://127.0.0.1:8000", "the server, without /v1", positional=True, named=True, metavar="URL")
    model: str | None = setting(None, "model that requests name; the first one the server lists by default")
    api_key: str | None = setting(None, "sent as a bearer token")
    concurrency: int | None = setting(
        None,
        "closed loop: so many clients, each sending its next request when the last one ended, whatever the arrival times",
    )
    warmup: int = setting(2, "requests sent one after another before the measurement, and not counted")
    request_timeout_s: float = setting(600.0, "seconds after which a request without an end counts as failed")
    max_model_len: int | None = setting(None, "tokens of the context; what the server lists by default")

    def __post_init__(self) -> None:
        check_types(self)
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url must be http://HOST[:PORT] or https://..., got {self.base_url!r}", param="base_url")
        if self.concurrency is not None:
            require_at_least("concurrency", self.concurrency, 1)
        require_at_least("warmup", self.warmup, 0)
        if self.max_model_len is not None:
            require_at_least("max_model_len", self.max_model_len, 2)
        if not 0.0 < self.request_timeout_s < math.inf:
            raise ConfigError(
                f"request_timeout_s must be above 0 and finite, got {self.request_timeout_s}", param="request_timeout_s"
            )
