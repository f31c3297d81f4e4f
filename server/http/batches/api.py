"""POST and GET /v1/batches; GET /v1/batches/ID; POST /v1/batches/ID/cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from jaxserve.errors import InvalidRequestError
from server.batches.records import NewBatch
from server.context import RequestContext
from server.http import examples
from server.http.batches.protocol import BatchRequest
from server.http.batches.replies import BatchListReply, BatchReply, batch_list_reply, batch_reply
from server.http.bodies import check_url
from server.http.headers import client_of, context_of
from server.http.openapi import STORING, answer, failures
from server.http.storage import owner_of, storage_of
from server.http.strict_json import StrictJsonRoute
from server.requests import in_words_of_client, served

router = APIRouter(route_class=StrictJsonRoute, tags=["batches"])

_MOST_BATCHES, _USUAL_BATCHES = 100, 20  # in a page, as OpenAI has it


@router.post("/v1/batches", responses={**answer(BatchReply, examples.BATCH), **failures(STORING)})
async def create(body: BatchRequest, request: Request) -> BatchReply:
    """Have an uploaded file's requests answered within a day."""
    storage, owner = storage_of(request), owner_of(request)
    context = context_of(request)
    client = served(client_of(request), None, context)
    try:
        check_url(body.endpoint)
    except InvalidRequestError as error:
        raise in_words_of_client(error, {"url": "endpoint"}) from error
    return batch_reply(await storage.run(storage.store.create_batch, owner, _wanted(body, client.model.name, context)))


@router.get("/v1/batches", responses={**answer(BatchListReply, examples.BATCHES), **failures(STORING)})
async def batches(
    request: Request,
    after: Annotated[str, Query(description="the id that ended the last page")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST_BATCHES)] = _USUAL_BATCHES,
) -> BatchListReply:
    """List the caller's batches, newest first."""
    storage, owner = storage_of(request), owner_of(request)
    found, has_more = await storage.run(storage.store.batches, owner, after=after, limit=limit)
    return batch_list_reply(found, has_more)


@router.get("/v1/batches/{batch_id}", responses={**answer(BatchReply, examples.BATCH), **failures(STORING)})
async def batch(batch_id: str, request: Request) -> BatchReply:
    """Describe one batch."""
    storage = storage_of(request)
    return batch_reply(await storage.run(storage.store.batch, owner_of(request), batch_id))


@router.post("/v1/batches/{batch_id}/cancel", responses={**answer(BatchReply, examples.BATCH), **failures(STORING)})
async def cancel(batch_id: str, request: Request) -> BatchReply:
    """Ask for a batch's end; what is done by then is delivered."""
    storage = storage_of(request)
    return batch_reply(await storage.run(storage.store.cancel, owner_of(request), batch_id))


def _wanted(body: BatchRequest, model: str, context: RequestContext) -> NewBatch:
    call = context.call
    expiry = body.output_expires_after
    return NewBatch(
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        model=model,
        metadata=body.metadata,
        output_lifetime=None if expiry is None else expiry.seconds,
        key_id="" if call is None else call.principal.key_id,
    )
