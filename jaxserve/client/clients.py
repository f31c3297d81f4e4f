"""Clients of httpx, or of httpx2, that send again where that helps."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import httpx

from jaxserve.client.budget import RetryBudget
from jaxserve.client.policy import RetryPolicy
from jaxserve.client.sending import Settings
from jaxserve.client.transport import RetryTransport
from jaxserve.client.transport_async import AsyncRetryTransport

_TIMEOUT, _CONNECT_TIMEOUT = 600.0, 5.0  # what OpenAI's and Anthropic's SDKs take
_CONNECTIONS, _IDLE_CONNECTIONS = 1000, 100  # the same: httpx's own 100 hold up the 101st stream


def http_client(
    policy: RetryPolicy | None = None, budget: RetryBudget | None = None, *, library: ModuleType = httpx, **settings: Any
) -> Any:
    """A `library.Client`.

    Args:
        policy: when requests are sent again.
        budget: how many; one of its own by default.
        library: httpx, or httpx2 for SDKs that take no other's clients.
        settings: of `library.Client`; those of its transport (`verify`, `proxy`, `limits`, ...) go there. Proxies of the
            environment are not used.

    Raises ValueError for a policy with hedging.
    """
    transport = settings.pop("transport", None) or library.HTTPTransport(**_of_transport(library, settings))
    given = Settings(library, policy or RetryPolicy(), budget or RetryBudget())
    return library.Client(transport=RetryTransport(transport, given), **_completed(library, settings))


def async_http_client(
    policy: RetryPolicy | None = None, budget: RetryBudget | None = None, *, library: ModuleType = httpx, **settings: Any
) -> Any:
    """A `library.AsyncClient`; see `http_client`."""
    transport = settings.pop("transport", None) or library.AsyncHTTPTransport(**_of_transport(library, settings))
    given = Settings(library, policy or RetryPolicy(), budget or RetryBudget())
    return library.AsyncClient(transport=AsyncRetryTransport(transport, given), **_completed(library, settings))


def _of_transport(library: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    """Take from the settings those of a transport; `trust_env` is of both."""
    names = inspect.signature(library.HTTPTransport).parameters
    taken = {name: settings[name] for name in names if name in settings}
    for name in taken.keys() - {"trust_env"}:
        del settings[name]
    limits = library.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_IDLE_CONNECTIONS)
    return {"limits": limits, **taken}


def _completed(library: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    return {"timeout": library.Timeout(_TIMEOUT, connect=_CONNECT_TIMEOUT), "follow_redirects": True, **settings}
