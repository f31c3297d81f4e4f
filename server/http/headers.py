"""What headers say of a request: its tenant."""

from __future__ import annotations

from starlette.datastructures import Headers

from jaxserve.types import RequestOptions
from server.http.fields import EngineFields
from server.requests import request_options

# Believed as it comes: only a gateway that sets it, and drops what clients send, makes it mean something.
TENANT_HEADER = "X-Tenant"


def options_of(body: EngineFields, headers: Headers) -> RequestOptions:
    """Whose request it is and what it may take. Raises InvalidRequestError."""
    return request_options(headers.getlist(TENANT_HEADER), body.options(), tenant_name=TENANT_HEADER)
