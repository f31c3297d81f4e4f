"""Bodies that come without a request, as those of batches do: the same checks, the same answers, the same errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from jaxserve.clock import RealClock
from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from jaxserve.jobs.answers import ASKED_AGAIN, STOPS_JOB, Answer
from jaxserve.jobs.lines import Line
from jaxserve.types import RequestOptions, ServiceClass
from jaxserve.untrusted import refused
from server.context import NOBODY, RequestContext
from server.errors import OUTCOMES, http_body
from server.http.chat.api import chat_reply
from server.http.completions import completion_reply
from server.http.failures import from_validation
from server.http.fields import RequestFields
from server.http.generate.api import generate_reply
from server.http.generate.protocol import GenerateRequest
from server.http.generate.replies import GenerateReply
from server.http.pooling.embeddings import embedding_reply
from server.http.pooling.protocol import EmbeddingRequest
from server.http.pooling.replies import EmbeddingReply
from server.http.protocol import ChatRequest, CompletionRequest
from server.http.replies import ChatReply, CompletionReply
from server.http.responses.api import response_reply
from server.http.responses.protocol import ResponsesRequest
from server.http.responses.replies import ResponseReply
from server.requests import new_id, request_options
from server.unsupported.notes import NOTES, Lenience, Notes

Body = TypeVar("Body", bound=RequestFields)
Reply = ChatReply | CompletionReply | ResponseReply | GenerateReply | EmbeddingReply
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Endpoint(Generic[Body]):
    body: type[Body]
    reply: Callable[[EngineClient, Body, RequestOptions, RequestContext], Awaitable[Reply]]

    async def answer(self, client: EngineClient, given: Mapping[str, Any], tenant: str, context: RequestContext) -> Reply:
        body = self._read(given)
        if body.stream:
            raise InvalidRequestError("stream must not be true: nobody reads along", param="stream")
        wanted = {**body.options(), "service_class": ServiceClass.BATCH.value}
        return await self.reply(client, body, request_options([tenant], wanted, tenant_name="tenant"), context)

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
        "/inference/v1/generate": _Endpoint(GenerateRequest, generate_reply),
        "/v1/embeddings": _Endpoint(EmbeddingRequest, embedding_reply),
    }
)
# Endpoints that batches have elsewhere, and this server not at all or not yet.
_NOT_SERVED = frozenset({"/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos", "/v1/messages"})

URLS = tuple(_ENDPOINTS)


def check_url(url: object) -> None:
    """Raise InvalidRequestError for a url that no batch may name."""
    if url in _ENDPOINTS:
        return
    if url in _NOT_SERVED:
        working = ", ".join(URLS)
        raise InvalidRequestError(f"url {url} is not supported by this server yet: batches take {working}", param="url")
    raise InvalidRequestError(f"url must be one of {', '.join(URLS)}, got {url!r}", param="url")


async def answer_body(client: EngineClient, url: str, body: Mapping[str, Any], *, tenant: str, context: RequestContext) -> Reply:
    """What the endpoint at `url` answers to a body, as work of the class batch whatever the body says.

    Raises InvalidRequestError for another url, a body that is unfit or one that wants a stream, and what EngineClient.generate
    raises. Cancelling aborts.
    """
    check_url(url)
    return await _ENDPOINTS[url].answer(client, body, tenant, context)


def _name_of(reply: Mapping[str, Any]) -> str:
    """What the reply calls its request: vLLM's endpoint has a word of its own for it."""
    name: str = reply["request_id" if "request_id" in reply else "id"]
    return name


class BodyAnswerer:
    """Answers by an engine; see jaxserve.jobs.answers.Answers.

    Args:
        lenience: what becomes of fields that are not supported; by default they are refused.
    """

    def __init__(
        self, client: EngineClient, tenant: str = "", lenience: Lenience | None = None, context: RequestContext = NOBODY
    ) -> None:
        self._client = client
        self._tenant = tenant
        self._context = context
        self._lenience = lenience or Lenience(RealClock())

    async def answer(self, line: Line) -> Answer:
        NOTES.set(Notes(self._lenience))  # told in the log alone: lines have no headers
        try:
            with refused("body"):
                reply = await answer_body(self._client, line.url, line.body, tenant=self._tenant, context=self._context)
        except JaxserveError as error:
            if error.code in ASKED_AGAIN | STOPS_JOB:
                raise
            return self._refusal(error)
        except Exception as error:
            logger.exception("the request of line %d failed", line.number)
            return self._refusal(InternalError(f"the request failed: {error!r}"))
        return Answer(HTTPStatus.OK, _name_of(reply), reply)

    def _refusal(self, error: JaxserveError) -> Answer:
        call = self._context.call
        return Answer(OUTCOMES[error.code].http, new_id("req") if call is None else call.request_id, http_body(error))
