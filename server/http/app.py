"""The HTTP application over an engine."""

from __future__ import annotations

from fastapi import FastAPI

from jaxserve.clock import RealClock
from jaxserve.config.server import ServerConfig
from jaxserve.engine.client import EngineClient
from jaxserve.versions import version_of
from server.feed.hub import EngineFeeds
from server.gateway.gateway import Gateway
from server.http import (
    about,
    adapters,
    completions,
    docs_page,
    engine_feed,
    failures,
    front_page,
    openapi,
    operation,
    rollouts,
    tokens,
    weight_transfer,
)
from server.http.batches import api as batches
from server.http.chat import api as chat
from server.http.files import api as files
from server.http.gate import Gate
from server.http.generate import api as generate
from server.http.held import Bodies
from server.http.kserve import api as kserve
from server.http.messages import api as messages
from server.http.middleware import Envelope, Heads, Paths
from server.http.observed import Observed, RouteNames
from server.http.pooling import cohere, embeddings, scores
from server.http.responses import api as responses
from server.http.storage import Storage
from server.http.streams import api as streams
from server.http.strict_json import LargeBodies
from server.http.web_pages import Cors, PageRules, Pages
from server.observe.deep_health import DeepHealth
from server.observe.observatory import Observatory
from server.page import routes as page


def create_app(
    client: EngineClient,
    gateway: Gateway,
    observatory: Observatory,
    config: ServerConfig,
    storage: Storage | None,
    feeds: EngineFeeds,
) -> FastAPI:
    """Build the application over an engine, behind a gateway, watched by an observatory; with storage for files or without.

    `feeds` tell those who watch the engine; whoever runs the application closes them.
    """
    app = FastAPI(title="jaxserve", version=version_of("jaxserve"), redirect_slashes=False, openapi_url=None)
    app.state.client = client
    app.state.large_bodies = LargeBodies()
    app.state.sse_keepalive = config.sse_keepalive
    app.state.observatory = observatory
    app.state.storage = storage
    app.state.streams = gateway.streams
    app.state.has_keys = gateway.has_keys
    app.state.deep_health = DeepHealth(client, RealClock())
    app.state.engine_feeds = feeds
    pooling = (embeddings, cohere, scores)
    asked = (chat, completions, responses, messages, generate, *pooling, streams, kserve, files, batches, tokens)
    pages = page if config.page else front_page
    parts = (*asked, about, operation, adapters, engine_feed, rollouts, weight_transfer, docs_page, pages)
    routers = [weight_transfer.pieces, *(part.router for part in parts)]  # its routes take what others of their paths do not
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    for router in routers:
        app.include_router(router)
    failures.install(app, routes)
    openapi.install(app)
    app.state.documents = docs_page.Documents(app.openapi)
    app.add_middleware(Heads, routes=routes)
    app.add_middleware(Gate, gateway=gateway, bodies=Bodies(config), routes=routes, silence=config.sse_keepalive)
    rules = PageRules.of(config)
    app.add_middleware(Pages, rules=rules)
    app.add_middleware(Observed, observatory=observatory, names=RouteNames(routes))
    app.add_middleware(Envelope)
    app.add_middleware(Paths)
    if rules.origins:
        app.add_middleware(Cors, origins=rules.origins)  # outermost: failures are for pages to read, too
    return app
