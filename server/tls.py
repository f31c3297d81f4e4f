"""TLS of both servers: certificate, key and clients' authority, read and checked before anything listens."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files that fit together.

    Attributes:
        certificate: the server's certificate, and those between it and its authority.
        key: the server's private key, without a password.
        client_ca: authorities one of which must have signed every client's certificate; None asks for no such certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    def http_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        if self.client_ca is not None:
            settings |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return settings

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """What a gRPC port is told. Raises ConfigError for a file that is gone since it was checked."""
        pair = (_read(self.key, "tls_key"), _read(self.certificate, "tls_cert"))
        authority = None if self.client_ca is None else _read(self.client_ca, "tls_client_ca")
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def load_tls(config: ServerConfig) -> Tls | None:
    """The files that the configuration names; None without any. Raises ConfigError if one is missing, broken or does not fit."""
    if config.tls_cert is None or config.tls_key is None:  # the configuration has both or neither
        return None
    certificate, key = Path(config.tls_cert), Path(config.tls_key)
    client_ca = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    for path, name in ((certificate, "tls_cert"), (key, "tls_key"), (client_ca, "tls_client_ca")):
        if path is not None:
            _read(path, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"tls_cert {certificate} and tls_key {key} are no PEM certificate and its key without a password ({error})",
            param="tls_cert",
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"tls_client_ca {client_ca} holds no PEM certificates ({error})", param="tls_client_ca") from error
    return Tls(certificate, key, client_ca)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for what is no path at all
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} {path} cannot be read ({reason})", param=name) from error


def _no_password() -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise ValueError("the key has a password")
