"""Ports that the supervisor holds."""

from __future__ import annotations

import socket

import pytest

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError
from server.ports import bind
from server.processes.supervisor import Ports


def test_front_ends_share_the_grpc_port_and_nobody_else_gets_it() -> None:
    ports = Ports.of(ServerConfig(port=0, grpc_port=0))
    try:
        port = ports.grpc.getsockname()[1]
        with bind("127.0.0.1", port, "grpc_port", shared=True) as one, bind("127.0.0.1", port, "grpc_port", shared=True) as two:
            one.listen()
            two.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
        with pytest.raises(ConfigError, match="--grpc-port"):
            bind("127.0.0.1", port, "grpc_port")
        with pytest.raises(ConfigError, match="--port"):
            bind("127.0.0.1", ports.http.getsockname()[1], "port")
    finally:
        ports.close()


def test_a_port_that_others_share_is_taken_all_the_same() -> None:
    with bind("127.0.0.1", 0, "grpc_port", shared=True) as others:
        others.listen()
        with pytest.raises(ConfigError, match="--grpc-port"):
            Ports.of(ServerConfig(port=0, grpc_port=others.getsockname()[1]))


def test_servers_beside_one_another_share_both_ports_and_nobody_else_gets_them() -> None:
    one = Ports.of(ServerConfig(port=0, grpc_port=0), shared=True)
    port, grpc_port = (held.getsockname()[1] for held in (one.http, one.grpc))
    other = Ports.of(ServerConfig(port=port, grpc_port=grpc_port), shared=True)
    try:
        other.http.listen()
        with socket.create_connection(("127.0.0.1", port)):  # one that is bound and does not listen yet gets nobody's connections
            pass
        with pytest.raises(ConfigError, match="--port"):
            Ports.of(ServerConfig(port=port, grpc_port=0))
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("host", ["x" * 70, "a\0b"])
def test_a_host_that_is_none_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match="choose another --host"):
        bind(host, 0, "port")
