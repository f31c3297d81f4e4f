"""Bodies that come without a request, as those of batches do: the same checks, the same answers, the same errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.types import RequestOptions, ServiceClass
from server.http.chat import chat_reply
from server.http.completions import completion_reply
from server.http.failures import from_validation
from server.http.fields import EngineFields
from server.http.protocol import ChatRequest, CompletionRequest
from server.http.replies import ChatReply, CompletionReply
from server.http.responses.api import response_reply
from server.http.responses.protocol import ResponsesRequest
from server.http.responses.replies import ResponseReply
from server.requests import request_options

Body = TypeVar("Body", bound=EngineFields)
Reply = ChatReply | CompletionReply | ResponseReply


@dataclass(frozen=True, slots=True)
class _Endpoint(Generic[Body]):
    body: type[Body]
    reply: Callable[[EngineClient, Body, RequestOptions], Awaitable[Reply]]

    async def answer(self, client: EngineClient, given: Mapping[str, Any], tenant: str) -> Reply:
        body = self._read(given)
        if body.stream:
            raise InvalidRequestError("stream must not be true: nobody reads along", param="stream")
        wanted = {**body.options(), "service_class": ServiceClass.BATCH.value}
        return await self.reply(client, body, request_options([tenant], wanted, tenant_name="tenant"))

    def _read(self, given: Mapping[str, Any]) -> Body:
        try:
            return self.body.model_validate(given)
        except ValidationError as error:
            complaints = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
            raise from_validation(complaints, given) from error


_ENDPOINTS: Mapping[str, _Endpoint[Any]] = MappingProxyType(
    {
        "/v1/chat/completions": _Endpoint(ChatRequest, chat_reply),
        "/v1/completions": _Endpoint(CompletionRequest, completion_reply),
        "/v1/responses": _Endpoint(ResponsesRequest, response_reply),
    }
)
# Endpoints that batches have elsewhere, and this server not at all or not yet.
_NOT_SERVED = frozenset(
    {"/v1/embeddings", "/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos", "/v1/messages"}
)

URLS = tuple(_ENDPOINTS)


def check_url(url: object) -> None:
    """Raise InvalidRequestError for a url that no batch may name."""
    if url in _ENDPOINTS:
        return
    if url in _NOT_SERVED:
        working = ", ".join(URLS)
        raise InvalidRequestError(f"url {url} is not supported by this server yet: batches take {working}", param="url")
    raise InvalidRequestError(f"url must be one of {', '.join(URLS)}, got {url!r}", param="url")


async def answer_body(client: EngineClient, url: str, body: Mapping[str, Any], *, tenant: str = "") -> Reply:
    """What the endpoint at `url` answers to a body, as work of the class batch whatever the body says.

    Raises InvalidRequestError for another url, a body that is unfit or one that wants a stream, and what EngineClient.generate
    raises. Cancelling aborts.
    """
    check_url(url)
    return await _ENDPOINTS[url].answer(client, body, tenant)
