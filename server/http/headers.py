"""Whose an HTTP request is: what its headers say, and what is known of it further out."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request

from jaxserve.engine.client import EngineClient
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.gateway.call import Call
from server.http.fields import RequestFields
from server.requests import request_options

# Believed as it comes: only a gateway that sets it, and drops what clients send, makes it mean something.
TENANT_HEADER = "X-Tenant"


def client_of(request: Request) -> EngineClient:
    client: EngineClient = request.app.state.client
    return client


def context_of(request: Request) -> RequestContext:
    """Whose work it is, as the gate said."""
    context: RequestContext = request.scope["state"]["context"]
    return context


def tenant_of(call: Call, headers: Headers) -> str:
    """Whose call it is: the key's tenant, or what a client without one says."""
    tenant = call.principal.tenant
    return headers.get(TENANT_HEADER, "") if tenant is None else tenant


def caller_of(request: Request) -> tuple[Call, str]:
    """Who asks, and whose tenant's things that sees."""
    call = context_of(request).call
    assert call is not None, "the gate names it"
    return call, tenant_of(call, request.headers)


def options_of(body: RequestFields, headers: Headers) -> RequestOptions:
    """Whose request it is and what it may take. Raises InvalidRequestError."""
    return request_options(headers.getlist(TENANT_HEADER), body.options(), tenant_name=TENANT_HEADER)
