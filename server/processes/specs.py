"""What front ends and the batch worker are told when they start, and what they and the supervisor tell each other later."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.config.fields import ServerConfig
from jaxserve.engine.remote.messages import WireError

# Services of the supervisor.
READY, FAILED, DRAIN, LEDGER = "ready", "failed", "drain", "ledger"
# Topics of its notices.
ENGINE, HOME = "engine", "home"


class LinkedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process runs that speaks to the engine.

    Attributes:
        name: unique among all of the server, those that are gone too.
        restarts: how often one in its place was started before.
        engine: ZeroMQ endpoint of the engine.
        config: the server's, with the ports that the supervisor got.
        metrics: directory that the processes share their metrics in.
    """

    name: str
    restarts: int
    engine: str
    config: dict[str, Any]
    metrics: str

    def server_config(self) -> ServerConfig:
        """The configuration."""
        return msgspec.convert(self.config, ServerConfig)


class FrontEndSpec(LinkedSpec, frozen=True, kw_only=True):
    """What a front end runs.

    Attributes:
        http_socket: file descriptor of the listening HTTP socket.
    """

    http_socket: int


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of HOME: where processes meet from now on, or why they cannot.

    Attributes:
        engine: ZeroMQ endpoint of the engine.
        metrics: directory that the processes share their metrics in.
        error: why new processes do not find the engine there; None if they do.
    """

    engine: str
    metrics: str
    error: WireError | None = None


def encode_home(home: Home) -> bytes:
    """The payload of HOME."""
    return msgspec.json.encode(home)


def decode_home(payload: bytes) -> Home:
    """What such a payload says."""
    return msgspec.json.decode(payload, type=Home)


def encode_error(error: WireError) -> bytes:
    """The payload of FAILED and of ENGINE: why there is no engine now."""
    return msgspec.json.encode(error)


def decode_error(payload: bytes) -> WireError:
    """The error in such a payload."""
    return msgspec.json.decode(payload, type=WireError)
