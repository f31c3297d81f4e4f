"""What operators do to a running server."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from server.http.openapi import ASKING, failures

router = APIRouter()


@router.post(
    "/reset_prefix_cache",
    response_class=Response,
    responses={200: {"description": "done"}, **failures(ASKING)},
    tags=["operation"],
)
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached prefix, pinned ones too; what runs goes on. An empty 200, as vLLM answers."""
    client: EngineClient = request.app.state.client
    await client.reset_prefix_cache()
    return Response()
