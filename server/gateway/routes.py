"""Which operations are open, which are for operators, and which are for whoever has a key: all the others."""

from __future__ import annotations

import re
from typing import Literal

Access = Literal["open", "key", "admin"]

_OPEN_PATHS = frozenset(
    {
        "/",
        "/engine",
        "/ping",
        "/health",
        "/ready",
        "/metrics",
        "/version",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
        "/openapi.json",
        "/favicon.ico",
    }
)
_OPEN_UNDER = ("/health/", "/v2/health/", "/docs/", "/page/")
_MODEL_READY = re.compile("/v2/models/.+/ready")
_ADMIN_PATHS = frozenset(
    {
        "/reset_prefix_cache",
        "/kv_event_sources",
        "/drain",
        "/pause",
        "/resume",
        "/is_paused",
        "/abort_requests",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/start_adapter_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/shutdown_weight_transfer_engine",
        "/weight_checker",
        "/get_world_size",
        "/weight_info",
        "/update_weight_version",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/update_weights_from_disk",
        "/pause_generation",
        "/continue_generation",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/flush_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
_ADMIN_UNDER = ("/debug/", "/admin/")

_OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})
_OPEN_METHODS = frozenset(
    {
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
        "/inference.GRPCInferenceService/ModelReady",
        "/vllm.grpc.engine.VllmEngine/HealthCheck",
    }
)
_ADMIN_SERVICES = frozenset({"jaxserve.v1.Admin"})
_ADMIN_METHODS = frozenset({"/vllm.grpc.engine.VllmEngine/FlushCache"})


_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_UPLOADS = frozenset({("POST", "/v1/files")})
_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"})
_GENERATING_MODEL = re.compile("/v2/models/.+/generate(_stream)?")
_WITH_WEIGHTS = frozenset({"/start_weight_update", "/start_draft_weight_update", "/start_adapter_update", "/update_weights"})


def is_upload(method: str, path: str) -> bool:
    """Whether an HTTP operation reads its body by itself, as it comes and to a limit of its own."""
    return (method, path) in _UPLOADS


def generates(method: str, path: str) -> bool:
    """Whether an HTTP operation answers with what a model generates, as a stream or as a whole."""
    return method == "POST" and (path in _GENERATING or _GENERATING_MODEL.fullmatch(path) is not None)


def has_weights(path: str) -> bool:
    """Whether bodies of a path are pieces of weights, or name all of them: they are longer than others."""
    return path in _WITH_WEIGHTS


def takes_body(method: str, path: str) -> bool:
    """Whether an HTTP operation may have a body; where nobody has said who they are none is read."""
    return method in _WITH_BODY and http_access(path) != "open"


def http_access(path: str) -> Access:
    if path in _OPEN_PATHS or path.startswith(_OPEN_UNDER) or _MODEL_READY.fullmatch(path):
        return "open"
    if path in _ADMIN_PATHS or path.startswith(_ADMIN_UNDER):
        return "admin"
    return "key"


def grpc_access(method: str) -> Access:
    """Who may call a gRPC method, named as "/package.Service/Method"."""
    service = method.lstrip("/").partition("/")[0]
    if method in _OPEN_METHODS or service in _OPEN_SERVICES:
        return "open"
    return "admin" if service in _ADMIN_SERVICES or method in _ADMIN_METHODS else "key"
