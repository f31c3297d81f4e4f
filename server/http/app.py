"""The HTTP application over an engine."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from jaxserve.engine.client import EngineClient
from server.gateway.gateway import Gateway
from server.http import about, admin, chat, completions, docs_page, failures, openapi, tokens
from server.http.gate import Gate
from server.http.messages import api as messages
from server.http.middleware import Envelope
from server.http.responses import api as responses


def create_app(client: EngineClient, gateway: Gateway) -> FastAPI:
    """Build the application. It holds no state but the client."""
    app = FastAPI(title="jaxserve", version=version("jaxserve"), redirect_slashes=False, docs_url=None, redoc_url=None)
    app.state.client = client
    for part in (chat, completions, responses, messages, tokens, about, admin, docs_page):
        app.include_router(part.router)
    failures.install(app)
    openapi.install(app)
    app.add_middleware(Gate, gateway=gateway)
    app.add_middleware(Envelope)
    return app
