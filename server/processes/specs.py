"""What a front-end process is told when it starts, and what supervisor and front ends tell each other later."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.config.fields import ServerConfig
from jaxserve.engine.remote.messages import WireError

# Services of the supervisor.
LISTENING, FAILED, DRAIN, LEDGER = "listening", "failed", "drain", "ledger"
# Topics of its notices.
ENGINE = "engine"


class FrontEndSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a front-end process runs.

    Attributes:
        name: unique among all front ends of the server, those that are gone too.
        restarts: how often one in its place was started before.
        engine: ZeroMQ endpoint of the engine.
        config: the server's, with the ports that the supervisor got.
        http_socket: file descriptor of the listening HTTP socket.
        metrics: directory that the processes share their metrics in.
    """

    name: str
    restarts: int
    engine: str
    config: dict[str, Any]
    http_socket: int
    metrics: str

    def server_config(self) -> ServerConfig:
        """The configuration."""
        return msgspec.convert(self.config, ServerConfig)


def encode_error(error: WireError) -> bytes:
    """The payload of FAILED and of ENGINE: why there is no engine now."""
    return msgspec.json.encode(error)


def decode_error(payload: bytes) -> WireError:
    """The error in such a payload."""
    return msgspec.json.decode(payload, type=WireError)
