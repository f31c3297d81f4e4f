"""GET / of a server without pages of its own: what is served, and where to go."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from jaxserve.engine.client import EngineClient, ModelInfo
from jaxserve.versions import version_of
from server.http.docs_page import STYLE
from server.models import clients_of

router = APIRouter(include_in_schema=False)

_LINKS = {
    "docs": "every endpoint, field and status",
    "openapi.json": "the same for machines",
    "v1/models": "what is served (with a key, where the server has keys)",
    "health": "whether this process lives",
    "ready": "whether requests are accepted",
    "metrics": "load and times, for Prometheus",
}


@router.get("/")
async def front_page(request: Request) -> HTMLResponse:
    """The page, of which nothing comes from elsewhere."""
    client: EngineClient = request.app.state.client
    return HTMLResponse(page([one.model for one in clients_of(client)]))


def page(models: Sequence[ModelInfo]) -> str:
    served = "; ".join(
        f"{' or '.join(f'<code>{escape(name)}</code>' for name in model.names)} ({escape(model.architecture)}), "
        f"{model.max_model_len} tokens of context"
        for model in models
    )
    rows = "".join(f'<tr><td><a href="{path}">/{path}</a></td><td>{text}</td></tr>' for path, text in _LINKS.items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>jaxserve: {escape(models[0].name)}</title>'
        f"<style>{STYLE}</style><h1>jaxserve</h1>"
        f"<p>Version {escape(version_of('jaxserve'))} serves {served}.</p>"
        f"<p>SDKs of OpenAI take this address with <code>/v1</code>, those of Anthropic as it is.</p><table>{rows}</table></html>"
    )
