"""What is looked at before anything is started."""

from __future__ import annotations

from jaxserve.config.fields import ServerConfig
from jaxserve.errors import ConfigError
from server.batches.store import Store
from server.gateway.gateway import check_files
from server.ports import bind
from server.tls import load_tls
from server.unsupported.notes import names_of


def check_ports(config: ServerConfig) -> None:
    """Raise ConfigError for a port or a file that cannot be had: better known before a model is loaded than after."""
    load_tls(config)
    names_of(config.ignore_unsupported)
    check_files(config)
    store = Store.of(config)
    if store is not None:
        store.close()
    for port, flag in ((config.port, "port"), (config.grpc_port, "grpc_port")):
        bind(config.host, port, flag).close()
    if config.port == config.grpc_port != 0:
        raise ConfigError(f"port and grpc_port are both {config.port}: choose another --grpc-port", param="grpc_port")
