"""One line in the log for each exchange: no prompts, no outputs, no keys."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from jaxserve.logs import FIELDS
from server.observe.exchange import Exchange

logger = logging.getLogger(__name__)

# Asked every few seconds by machines: only of interest to whoever debugs them.
_PROBES = frozenset(
    {
        *("/ping", "/health", "/health/deep", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"),
        *("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"),
    }
)


def log_access(exchange: Exchange) -> None:
    level = logging.DEBUG if exchange.route in _PROBES else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "access", extra={FIELDS: access_fields(exchange)})


def access_fields(exchange: Exchange) -> dict[str, Any]:
    """What the line says; times are in seconds. Exchanges that asked nothing of the engine have no tokens and reasons.

    The status is a number on both surfaces; gRPC's have their name as `grpc_status`.
    """
    fields: dict[str, Any] = {
        "surface": exchange.surface,
        "method": exchange.method,
        "route": exchange.route,
        **_status(exchange),
        "request_id": exchange.request_id,
        "seconds": round(exchange.ended - exchange.began, 6),
    }
    ran = exchange.generations
    if not ran:
        return {**fields, "tenant": exchange.tenant} if exchange.tenant else fields
    firsts = [one.first_token for one in ran if one.first_token is not None]
    return {
        **fields,
        "tenant": ran[0].tenant,
        "prompt_tokens": sum(one.tally.prompt for one in ran),
        "cached_tokens": sum(one.tally.cached for one in ran),
        "output_tokens": sum(one.tally.completion for one in ran),
        "ttft": round(min(firsts) - exchange.began, 6) if firsts else None,
        "finish_reason": ",".join(dict.fromkeys(reason for one in ran for reason in one.reasons)) or None,
    }


def _status(exchange: Exchange) -> dict[str, Any]:
    if exchange.surface == "http":
        return {"status": int(exchange.status)}
    return {"status": grpc.StatusCode[exchange.status].value[0], "grpc_status": exchange.status}
