"""Endpoints that clients know and this server does not have: a 404 that says so, instead of one like a typing error's."""

from __future__ import annotations

# Prefixes of paths; what follows is nothing or begins with a slash.
_NOT_YET = (
    "/v1/embeddings",
    "/v1/uploads",
    "/v1/messages/batches",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
)
_NO_TEXT = ("/v1/audio", "/v1/images", "/v1/videos", "/v1/realtime", "/v1/moderations", "/v1/fine_tuning")
_STORED = ("/v1/responses", "/v1/conversations", "/v1/chat/completions", "/v1/assistants", "/v1/threads", "/v1/vector_stores")


def explained(path: str) -> str:
    """What a 404 for the path says."""
    if _under(path, _NOT_YET):
        return f"{path} is not supported by this server yet"
    if _under(path, _NO_TEXT):
        return f"{path} is not supported: this server generates text"
    if _under(path, _STORED):
        return f"{path} is not supported: this server stores nothing"
    return f"there is nothing at {path}"


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)
