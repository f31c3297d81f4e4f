"""From a call to a job that runs: whose it is, how long it may take, its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxserve.engine.client import EngineClient
from jaxserve.errors import DeadlineError
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.grpc.calls import GrpcCall
from server.requests import RequestJob, request_options
from server.streams import Events, run

# Believed as it comes: only a gateway that sets it, and drops what clients send, makes it mean something.
TENANT_METADATA = "x-tenant"
DEADLINE_METADATA = "grpc-timeout"  # what the protocol calls a call's deadline


def options_of(call: GrpcCall, fields: Mapping[str, Any]) -> RequestOptions:
    """Whose request it is and what it may take; the call's deadline bounds its time.

    Raises InvalidRequestError or DeadlineError.
    """
    options = request_options(call.metadata(TENANT_METADATA), fields, tenant_name=TENANT_METADATA)
    remaining = call.remaining()
    if remaining is None:
        return options
    if remaining <= 0:
        raise DeadlineError("the call's deadline has passed")
    return options if options.timeout is not None and options.timeout <= remaining else replace(options, timeout=remaining)


def limit_names(options: RequestOptions, fields: Mapping[str, Any], name: str) -> dict[str, str]:
    """What the client calls the timeout that `options_of` made of the fields: `name`, or its call's deadline."""
    return {"timeout": name if options.timeout == fields.get("timeout") else DEADLINE_METADATA}


def events_of(client: EngineClient, job: RequestJob, context: RequestContext) -> Events:
    """The job's events; closing them aborts it. The one place where gRPC starts a job."""
    return run(client, job, context)
