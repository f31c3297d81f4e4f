"""POST and GET /v1/files; GET and DELETE /v1/files/ID; GET /v1/files/ID/content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, RequestTooLargeError
from server.batches.records import Purpose, StoredFile
from server.batches.store import Upload
from server.http import examples
from server.http.files.form import OVERHEAD, REQUEST_BODY, UploadForm
from server.http.files.replies import FileDeletedReply, FileListReply, FileReply, file_list_reply, file_reply
from server.http.openapi import STORING, answer, failures
from server.http.storage import Storage, owner_of, storage_of

router = APIRouter(tags=["files"])

_BUFFER = 2**20  # bytes that are written at once
_MOST_FILES = 10_000  # in a page, as OpenAI has it
CONTENT_TYPE = "application/octet-stream"
_PIECE = 256 * 2**10


@router.post(
    "/v1/files",
    responses={**answer(FileReply, examples.FILE), **failures(STORING)},
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def upload(request: Request) -> FileReply:
    """Store a file. Its body may be longer than others, and is written to disk as it comes."""
    storage, owner = storage_of(request), owner_of(request)
    form = UploadForm(request.headers.get("content-type", ""))
    announced = max(_announced(request) - OVERHEAD, 0)
    _check_size(announced, storage)
    receiving = await storage.run(storage.store.upload, owner, announced)
    try:
        return file_reply(await _receive(request, storage, form, receiving))
    except ClientDisconnect as error:
        raise CancelledRequestError("the client went away") from error
    finally:
        await storage.run(receiving.close)


@router.get("/v1/files", responses={**answer(FileListReply, examples.FILES), **failures(STORING)})
async def files(
    request: Request,
    after: Annotated[str, Query(description="the id that ended the last page")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST_FILES)] = _MOST_FILES,
    order: Annotated[Literal["asc", "desc"], Query(description="by time of creation")] = "desc",
    purpose: Annotated[str | None, Query(description="only files for this")] = None,
) -> FileListReply:
    """List the caller's files."""
    storage, owner = storage_of(request), owner_of(request)
    found, has_more = await storage.run(
        storage.store.files, owner, after=after, limit=limit, newest_first=order == "desc", purpose=purpose
    )
    return file_list_reply(found, has_more)


@router.get("/v1/files/{file_id}", responses={**answer(FileReply, examples.FILE), **failures(STORING)})
async def file(file_id: str, request: Request) -> FileReply:
    """Describe one file."""
    storage = storage_of(request)
    return file_reply(await storage.run(storage.store.file, owner_of(request), file_id))


@router.get(
    "/v1/files/{file_id}/content",
    responses={
        200: {"description": "the file", "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **failures(STORING),
    },
    response_class=Response,
)
async def content(file_id: str, request: Request) -> Response:
    """Send a file's content."""
    storage = storage_of(request)
    record, opened = await storage.run(storage.store.open_file, owner_of(request), file_id)
    return FileContent(storage, record, opened)


@router.delete(
    "/v1/files/{file_id}",
    responses={**answer(FileDeletedReply, {"id": examples.FILE["id"], "object": "file", "deleted": True}), **failures(STORING)},
)
async def delete(file_id: str, request: Request) -> FileDeletedReply:
    """Delete a file that no unfinished batch reads."""
    storage = storage_of(request)
    await storage.run(storage.store.delete_file, owner_of(request), file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _receive(request: Request, storage: Storage, form: UploadForm, receiving: Upload) -> StoredFile:
    size = received = 0
    waiting = bytearray()
    async for data in request.stream():
        piece = form.feed(data)
        received += len(data)
        size += len(piece)
        _check_size(max(size, received - OVERHEAD), storage)
        if size > receiving.reserved:  # what waits here counts too
            await storage.run(receiving.expect, size)
        waiting += piece
        if len(waiting) >= _BUFFER:
            await storage.run(receiving.write, bytes(waiting))
            waiting.clear()
    fields = form.fields()
    await storage.run(receiving.write, bytes(waiting))
    assert form.filename is not None
    return await storage.run(receiving.keep, form.filename, Purpose(fields.purpose), fields.seconds)


def _announced(request: Request) -> int:
    """Bytes of the body, 0 if that is not known yet."""
    length = request.headers.get("content-length", "0")
    return int(length) if length.isdecimal() else 0


def _check_size(size: int, storage: Storage) -> None:
    if size > storage.max_file_bytes:
        raise RequestTooLargeError(
            f"the file is longer than the {storage.max_file_bytes} bytes that this server takes (--max-file-mib)", param="file"
        )


class FileContent(StreamingResponse):
    """Sends a file as the client reads it, and closes it whatever happens."""

    def __init__(self, storage: Storage, record: StoredFile, content: BinaryIO) -> None:
        self._storage = storage
        self._content = content
        headers = {
            "Content-Length": str(record.bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
            "X-Content-Type-Options": "nosniff",
        }
        super().__init__(self._pieces(), headers=headers, media_type=CONTENT_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await self._storage.run(self._content.read, _PIECE):
            yield piece
