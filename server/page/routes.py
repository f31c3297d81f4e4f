"""GET / and /engine, the pages, and their files under /page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from jaxserve.errors import NotFoundError
from server.page.bundle import assets

router = APIRouter(include_in_schema=False)

_ASSETS = assets()


@router.get("/")
async def chat(request: Request) -> Response:
    """The page on which one talks to a model."""
    return _ASSETS["chat.html"].response(request.headers)


@router.get("/engine")
async def engine(request: Request) -> Response:
    """The page on which one watches the engine."""
    return _ASSETS["engine.html"].response(request.headers)


@router.get("/page/{path:path}")
async def file(path: str, request: Request) -> Response:
    """A file of the two."""
    if path not in _ASSETS:
        raise NotFoundError(f"the page has no file {path[:200]!r}")
    return _ASSETS[path].response(request.headers)
