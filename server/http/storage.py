"""The store as coroutines use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from fastapi import Request

from jaxserve.config.server import ServerConfig
from jaxserve.engine.budgets import check_options
from jaxserve.errors import InvalidRequestError, NotFoundError
from server.batches.store import Store
from server.http.headers import TENANT_HEADER, context_of
from server.requests import in_words_of_client, request_options

Given = ParamSpec("Given")
Result = TypeVar("Result")

_THREADS = 4  # that wait for the disk, and so never for what other work shares its threads with


class Storage:
    """A store and the threads that use it."""

    def __init__(self, store: Store, max_file_bytes: int) -> None:
        self.store = store
        self.max_file_bytes = max_file_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="storage")

    @classmethod
    def of(cls, config: ServerConfig) -> Storage | None:
        """What the configuration asks for, None if it asks for none. Raises ConfigError."""
        store = Store.of(config)
        return None if store is None else cls(store, config.max_file_mib * 2**20)

    async def run(self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """What a function that waits for the disk returns. It runs to its end even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Wait for what runs, and let go of the store."""
        self._threads.shutdown()
        self.store.close()


def storage_of(request: Request) -> Storage:
    """The server's. Raises NotFoundError where it keeps nothing."""
    storage: Storage | None = request.app.state.storage
    if storage is None:
        raise NotFoundError("this server keeps no files and no batches: start it with --state-dir")
    return storage


def owner_of(request: Request) -> str:
    """Whose files and batches a request sees: those of the API key's tenant, or else of the one that the header names.

    Raises InvalidRequestError for a header that names none.
    """
    call = context_of(request).call
    if call is not None and call.principal.tenant is not None:
        return call.principal.tenant
    options = request_options(request.headers.getlist(TENANT_HEADER), {}, tenant_name=TENANT_HEADER)
    try:
        check_options(options)  # or the lines of its batches would all be refused
    except InvalidRequestError as error:
        raise in_words_of_client(error, {"tenant": TENANT_HEADER}) from error
    return options.tenant
