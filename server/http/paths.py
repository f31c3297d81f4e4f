"""Other spellings of paths: a slash at the end, and OpenAI's without /v1."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

_VERSION = "/v1"
# First parts of paths under /v1: clients whose base URL lacks it leave it out.
_VERSIONED = frozenset({"models", "chat", "completions", "responses", "messages", "files", "batches", "embeddings"})


class Paths:
    """Gives every request the one path that its operation has, before anything looks at it: who may use it, what is counted.

    The request is answered at once, as it came. A redirect would lose the body of many clients, and the key of some.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one exchange."""
        if scope["type"] == "http":
            path = canonical(scope["path"])
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode(errors="surrogateescape")}
        await self._app(scope, receive, send)


def canonical(path: str) -> str:
    """The path of the operation that a path means."""
    path = path.rstrip("/") or "/"
    return _VERSION + path if path[1:].partition("/")[0] in _VERSIONED else path
