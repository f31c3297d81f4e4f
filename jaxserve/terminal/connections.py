"""HTTP connections of commands, and what the environment says of proxies and certificates."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator

import httpx

from jaxserve.errors import ConfigError

_VARIABLES = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE or SSL_CERT_DIR"


def uses_environment(url: str) -> bool:
    """Whether proxies of the environment are for a server: not for one on this machine."""
    try:
        host = httpx.URL(url).host
        return host != "localhost" and not ipaddress.ip_address(host).is_loopback
    except (httpx.InvalidURL, ValueError):
        return True


@contextlib.contextmanager
def environment_errors(url: str) -> Iterator[None]:
    """Raise ConfigError that names the variables if the environment keeps a client from being made."""
    try:
        yield
    except httpx.InvalidURL:
        raise
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"cannot talk to {url}: {_VARIABLES} cannot be used: {error}") from error
