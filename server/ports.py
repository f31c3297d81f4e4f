"""Sockets to listen on, and where they are."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from jaxserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the servers listen, as URLs."""

    http: str
    grpc: str


def bind(host: str, port: int, name: str, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket that does not listen yet. Raises ConfigError naming host, port and flag.

    Args:
        port: 0 takes a free one.
        name: the setting that the port is from.
        shared: other sockets of the same user may listen on the port; this one keeps it from everybody else.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # the latter for what is no name at all
        raise ConfigError(f"cannot listen on host {host!r} ({error}): choose another --host", param="host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise taken(host, port, name, error) from error
    return listener


def taken(host: str, port: int, name: str, error: OSError) -> ConfigError:
    flag = "--" + name.replace("_", "-")
    reason = error.strerror or str(error)
    return ConfigError(f"cannot listen on {authority(host, port)} ({reason}): choose another {flag}", param=name)


def host_of(authority: str) -> str:
    """The host of "host:port" in small letters; of an IPv6 address with its brackets."""
    host = authority.partition("]")[0] + "]" if authority.startswith("[") else authority.partition(":")[0]
    return host.lower().removesuffix(".")


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
