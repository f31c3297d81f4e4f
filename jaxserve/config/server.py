"""Where and how the servers listen: the flags of `jaxserve.serve` that are not the engine's."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from jaxserve.config.check import check_types, require_at_least, take_several
from jaxserve.config.fields import setting
from jaxserve.config.home import expand_paths
from jaxserve.config.web_pages import parse_hosts, parse_origins
from jaxserve.errors import ConfigError

MAX_MESSAGE_MIB = 1024  # protobuf takes less than 2 GiB
MAX_KEEPALIVE = 86_400  # seconds; gRPC counts milliseconds in 32 bits
_MAX_DAYS = 36_500
_AT_LEAST_ONE = (
    "max_header_kib",
    "max_connections",
    "max_unread_tokens",
    "max_unread_kib",
    "max_weights_mib",
    "max_file_mib",
    "max_tenant_mib",
    "max_tenant_batches",
    "max_batch_lines",
)
_STREAM_TIMES = (
    "http_keepalive",
    "receive_timeout",
    "body_timeout",
    "upload_timeout",
    "sse_keepalive",
    "unread_timeout",
    "token_timeout",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and how the servers listen."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "HTTP port; 0 picks a free one")
    grpc_port: int = setting(8001, "gRPC port; 0 picks a free one")
    tls_cert: str | None = setting(
        None, "PEM file of the certificate, and of those between it and its authority; plain text by default"
    )
    tls_key: str | None = setting(None, "PEM file of the certificate's private key, without a password")
    tls_client_ca: str | None = setting(
        None, "PEM file of authorities that sign clients' certificates; clients need none by default"
    )
    grpc_max_message_mib: int = setting(16, "largest gRPC request in MiB")
    grpc_keepalive: float = setting(60.0, "seconds without traffic after which a gRPC client is asked whether it lives")
    keys: str | None = setting(None, "TOML file of API keys and of what their tenants may take; without, anybody is let in")
    api_key_hashes: tuple[str, ...] = setting((), "SHA-256 of keys that one tenant has, in place of a file of keys", flag=False)
    allow_unauthenticated: bool = setting(False, "listen without API keys where other machines can reach the server")
    allowed_hosts: str = setting(
        "",
        "names, with commas between them, that requests may call the server by, besides localhost and --host; '*' for any, "
        "which is so by default with API keys or where other machines can reach it",
    )
    allowed_origins: str = setting(
        "", "origins of web pages, with commas between them, that may send requests and read answers (CORS); '*' for any"
    )
    page: bool = setting(True, "serve the pages at / and /engine, to talk to the model and to watch the engine in a browser")
    usage_log: str | None = setting(None, "file to which each delivered batch of tokens is appended as a line of JSON, for bills")
    ignore_unsupported: str = setting(
        "", "fields, with commas between them, that are dropped from requests instead of refused, such as tools; answers say so"
    )
    max_body_bytes: int = setting(4 * 2**20, "longest body of an HTTP request other than an upload")
    max_bodies_mib: int = setting(
        512, "MiB of request bodies that a front end holds at once; a tenant takes a quarter of it at most"
    )
    max_weights_mib: int = setting(64, "longest body in MiB by which another process sends weights, with an admin key")
    state_dir: str | None = setting(
        None, "directory of files and batches, made if need be; without, /v1/files and /v1/batches are not served"
    )
    max_file_mib: int = setting(512, "largest file in MiB that can be uploaded")
    file_days: float = setting(30.0, "days after which a file is removed, unless it was asked for less or more")
    max_tenant_mib: int = setting(10_240, "MiB of files that a tenant may have stored; outputs of batches count")
    max_tenant_batches: int = setting(100, "batches of a tenant that have not ended, at most")
    max_batch_lines: int = setting(50_000, "requests in a batch, at most")
    max_header_kib: int = setting(64, "longest head of an HTTP request in KiB: request line and headers")
    max_connections: int = setting(10_000, "HTTP connections a front end; more are told to come back")
    http_keepalive: float = setting(75.0, "seconds that an HTTP connection may be idle between requests")
    receive_timeout: float = setting(20.0, "seconds in which a request's head, or body, may be behind 500 bytes a second")
    body_timeout: float = setting(300.0, "seconds after which a request's body must have come, other than an upload's")
    upload_timeout: float = setting(3600.0, "seconds after which an upload must have come")
    sse_keepalive: float = setting(10.0, "seconds of silence after which a stream is sent a comment, and begun if need be")
    max_unread_tokens: int = setting(4096, "tokens that wait for a client that reads slowly, at most")
    max_unread_kib: int = setting(4096, "memory in KiB that they take, at most")
    unread_timeout: float = setting(60.0, "seconds without progress after which a client that does not read is given up")
    idempotency_grace: float = setting(
        10.0, "seconds that a request with an Idempotency-Key goes on after its client went away, which may come back; 0 for none"
    )
    stream_grace: float = setting(
        60.0, "seconds that a stream which can be resumed (X-Conversation-Id) goes on while nobody reads it; 0 for none"
    )
    token_timeout: float = setting(600.0, "seconds without a token after which a stream ends; the batch class may wait for ever")
    frontends: int = setting(1, "front-end processes, each with HTTP and gRPC on the same ports")
    tokenizer_processes: int = setting(0, "processes a front end that tokenize and render; 0 for threads of its own")
    max_engine_restarts: int = setting(5, "starts in a row of engines that end within a minute, before the server gives up")
    drain_timeout: float = setting(30.0, "seconds that running requests get to finish after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severe message to log")
    log_format: Literal["text", "json"] = setting("text", "how messages are written: for people, or an object a line")
    otlp_endpoint: str | None = setting(
        None, "OTLP/gRPC address of an OpenTelemetry collector, such as http://localhost:4317; no spans by default"
    )
    slo_ttft_ms: float = setting(1000.0, "time to the first token that counts as in time for goodput, milliseconds")
    slo_itl_ms: float = setting(50.0, "mean time between tokens that counts as in time for goodput, milliseconds")
    ready_timeout: float = setting(
        10.0, "seconds without a turn of the engine's loop after which /ready fails; a late step or a lost pulse fails it sooner"
    )
    engine_hang_timeout: float = setting(
        120.0,
        "seconds without a turn after which the engine is killed and restarted; without a pulse after 10 s, in a step after "
        "ten times its expected time; 0 to never kill it",
    )

    def __post_init__(self) -> None:
        take_several(self, "api_key_hashes")
        check_types(self)
        expand_paths(self, "tls_cert", "tls_key", "tls_client_ca", "keys", "usage_log", "state_dir")
        for name in ("port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} must be between 0 and 65535, got {getattr(self, name)}", param=name)
        require_at_least("frontends", self.frontends, 1)
        require_at_least("tokenizer_processes", self.tokenizer_processes, 0)
        require_at_least("max_engine_restarts", self.max_engine_restarts, 0)
        for name in ("drain_timeout", "engine_hang_timeout", "idempotency_grace", "stream_grace"):
            require_at_least(name, getattr(self, name), 0)
            if getattr(self, name) == math.inf:
                raise ConfigError(f"{name} must be finite, got inf", param=name)
        require_at_least("max_body_bytes", self.max_body_bytes, 1)
        require_at_least("max_bodies_mib", self.max_bodies_mib, self.max_body_bytes / 2**20)  # one must fit
        for name in _AT_LEAST_ONE:
            require_at_least(name, getattr(self, name), 1)
        for name in ("slo_ttft_ms", "slo_itl_ms", "ready_timeout", *_STREAM_TIMES):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {getattr(self, name)}", param=name)
        if not 0.0 < self.file_days <= _MAX_DAYS:
            raise ConfigError(f"file_days must be above 0 and at most {_MAX_DAYS}, got {self.file_days}", param="file_days")
        if self.keys is not None and self.api_key_hashes:
            raise ConfigError(
                "keys and api_key (or JAXSERVE_API_KEY) exclude each other: `jaxserve keys` adds a key to the file",
                param="api_key",
            )
        parse_hosts(self.allowed_hosts)
        parse_origins(self.allowed_origins)
        if not self.has_keys and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r} can be reached by other machines, and there are no API keys: give --keys or --api-key, "
                "or --allow-unauthenticated to let anybody in",
                param="allow_unauthenticated",
            )
        if self.otlp_endpoint is not None and not _is_http_url(self.otlp_endpoint):
            raise ConfigError(
                f"otlp_endpoint must be a URL such as http://localhost:4317, got {self.otlp_endpoint!r}", param="otlp_endpoint"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together", param="tls_key" if self.tls_key is None else "tls_cert")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key", param="tls_client_ca")
        if not 1 <= self.grpc_max_message_mib <= MAX_MESSAGE_MIB:
            raise ConfigError(
                f"grpc_max_message_mib must be between 1 and {MAX_MESSAGE_MIB}, got {self.grpc_max_message_mib}",
                param="grpc_max_message_mib",
            )
        if not 1.0 <= self.grpc_keepalive <= MAX_KEEPALIVE:
            raise ConfigError(
                f"grpc_keepalive must be between 1 and {MAX_KEEPALIVE} seconds, got {self.grpc_keepalive}", param="grpc_keepalive"
            )

    @property
    def has_keys(self) -> bool:
        """Whether who sends requests needs an API key."""
        return self.keys is not None or bool(self.api_key_hashes)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach what listens on an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # no host or port that could be one
        return False
