"""The files of the pages, as answers: compressed once, never changed while a server runs."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fastapi import Response
from starlette.datastructures import Headers

STATIC = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

# What models write is shown here, so that nothing but these files may run, and nothing may be sent elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked about each time, and told by the ETag that it is the same
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class Asset:
    """One file of the pages."""

    path: Path

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, 9, mtime=0)

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def response(self, headers: Headers) -> Response:
        """The file for a request with these headers: nothing where the browser has it, compressed where it may be."""
        own = {**_HEADERS, "ETag": self.etag}
        if self.etag in headers.get("if-none-match", ""):
            return Response(status_code=304, headers=own)
        accepted = [one.strip() for one in headers.get("accept-encoding", "").split(",")]
        media_type = MEDIA_TYPES[self.path.suffix]
        if "gzip" in accepted:
            return Response(self.compressed, headers={**own, "Content-Encoding": "gzip"}, media_type=media_type)
        return Response(self.content, headers=own, media_type=media_type)


def assets(folder: Path = STATIC) -> Mapping[str, Asset]:
    """The files of a folder by their paths in it."""
    return {path.relative_to(folder).as_posix(): Asset(path) for path in sorted(folder.rglob("*")) if path.is_file()}
