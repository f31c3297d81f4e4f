"""WeightSender: gives a trainer's weights to a server that runs in another process, here or on another machine."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import httpx
import jax
import numpy as np

from jaxserve.engine.control import SentMapping
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import CheckpointError, InvalidRequestError, JaxserveError
from jaxserve.jax_settings import engine_settings
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.live.pieces import FLOAT_DTYPES, pieces_of
from jaxserve.weights.live.trees import Arrays, named_arrays, named_lora_arrays

PIECE_BYTES = 4 * 2**20
"""Of arrays that are sent at a time: so few that a server's front end is not kept from its streams for long."""
IN_FLIGHT = 8
"""Pieces that are on their way at the same time: an engine that serves takes what has come between two of its turns."""
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)  # an update may wait for what runs


class TransferError(JaxserveError):
    """The server did not take the weights, or was not reached.

    Attributes:
        status: of its answer, after which it serves the weights that it had; None if there was none. If that was of the last
            request, which puts the weights in place, `GET /weight_info` tells what is served.
    """

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)
        self.status = status


class WeightSender:
    """Sends trees of arrays to one server, or one fleet, as new weights. One thread uses it at a time.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        key: an API key of it with admin = true.
        piece_bytes: of arrays in one request; the server takes bodies of --max-weights-mib.
        client: sends the requests, in place of one that is made and closed here.
    """

    def __init__(self, url: str, key: str, *, piece_bytes: int = PIECE_BYTES, client: httpx.Client | None = None) -> None:
        if piece_bytes < 1:
            raise InvalidRequestError(f"piece_bytes must be at least 1, got {piece_bytes}", param="piece_bytes")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._piece_bytes = piece_bytes
        self._client = httpx.Client(timeout=_TIMEOUT) if client is None else client
        self._owns = client is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._owns:
            self._client.close()

    def send(
        self,
        params: Any,
        version: int | str | None = None,
        *,
        mode: PauseMode = "abort",
        partial: bool = False,
        mapping: SentMapping = "auto",
        force: bool = False,
    ) -> int | str:
        """Send weights and wait until they are served; see `LLM.update_weights`, which has the same arguments.

        Returns their version. Raises CheckpointError for a tree that cannot be sent, TransferError for one that the server does
        not take, or if it is not reached.
        """
        finish = {"weight_version": version, "mode": mode, "force": force}
        start = {"mapping": mapping, "partial": partial}
        served = self._update("/start_weight_update", named_arrays(params), start, finish)
        assert served is not None, "weights that were updated have a version"
        return served

    def send_draft(self, params: Any, *, mode: PauseMode = "keep", partial: bool = False, mapping: SentMapping = "auto") -> None:
        """Send the weights of the server's draft model, or head, and wait until it guesses by them; its tokens are the same.

        Raises as `send` does.
        """
        start = {"mapping": mapping, "partial": partial}
        self._update("/start_draft_weight_update", named_arrays(params), start, {"mode": mode})

    def send_adapter(
        self,
        name: str,
        params: Any,
        config: Mapping[str, Any],
        *,
        load_inplace: bool = True,
        tenant: str | None = None,
        mapping: SentMapping = "auto",
    ) -> None:
        """Send an adapter (LoRA), and wait until requests may name it; see `LLM.load_lora_adapter`. What runs is left alone.

        Args:
            load_inplace: whether it may replace one of the same name.
            tenant: whose it is; None for everybody's.

        Raises as `send` does.
        """
        start = {
            "lora_name": name,
            "lora_config": dict(config),
            "load_inplace": load_inplace,
            "tenant": tenant,
            "mapping": mapping,
        }
        self._update("/start_adapter_update", named_lora_arrays(params), start, {"mode": "keep"})

    def _update(self, path: str, arrays: Arrays, start: Mapping[str, Any], finish: Mapping[str, Any]) -> int | str | None:
        """The version that is served then."""
        _require_sendable(arrays)
        self._post("/init_weight_transfer_engine", {"init_info": {"backend": "http"}})
        try:
            return self._sent(path, arrays, start, finish)
        finally:
            with contextlib.suppress(TransferError):  # what went wrong before is what matters
                self._post("/shutdown_weight_transfer_engine")

    def _sent(self, path: str, arrays: Arrays, start: Mapping[str, Any], finish: Mapping[str, Any]) -> int | str | None:
        announced = {
            "names": list(arrays),
            "dtype_names": [str(array.dtype) for array in arrays.values()],
            "shapes": [list(array.shape) for array in arrays.values()],
            **start,
        }
        update_id = self._post(path, announced)["update_id"]
        self._put_all(arrays, update_id)
        served: int | str | None = self._post("/finish_weight_update", {**finish, "update_id": update_id})["weight_version"]
        return served

    @engine_settings()
    def _put_all(self, arrays: Arrays, update_id: str) -> None:
        def put(piece: bytes) -> None:
            self._request("/update_weights", params={"update_id": update_id}, content=piece, kind="application/octet-stream")

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            sent: deque[Future[None]] = deque()
            for piece in pieces_of(_on_host(arrays), self._piece_bytes):
                if len(sent) == IN_FLIGHT:
                    sent.popleft().result()
                sent.append(pool.submit(put, piece))
            for one in sent:
                one.result()

    def _post(self, path: str, body: Any = None) -> Any:
        return self._request(path, json=body)

    def _request(self, path: str, *, kind: str | None = None, **request: Any) -> Any:
        headers = {**self._headers, **({} if kind is None else {"content-type": kind})}
        try:
            reply = self._client.post(f"{self._url}{path}", headers=headers, **request)
        except httpx.HTTPError as error:
            raise TransferError(f"POST {self._url}{path} did not get through: {error!r}") from error
        if reply.is_success:
            return reply.json()
        raise _refusal(path, reply)


def _refusal(path: str, reply: httpx.Response) -> TransferError:
    try:
        error = reply.json()["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = reply.text[:200], None
    return TransferError(f"{path} was answered with {reply.status_code}: {message}", param=param, status=reply.status_code)


def _require_sendable(arrays: Arrays) -> None:
    """Raise CheckpointError for what this process cannot read, before anything is sent."""
    for name, array in arrays.items():
        if str(array.dtype) not in FLOAT_DTYPES:
            raise CheckpointError(f"params: {name} is {array.dtype}, not {', '.join(FLOAT_DTYPES)}", param="params")
        if not isinstance(array, jax.Array):
            continue
        if array.is_deleted():
            raise CheckpointError(f"params: {name} was deleted or donated", param="params")
        if not array.is_fully_addressable:
            raise CheckpointError(f"params: {name} is on devices of other processes, too: gather it first", param="params")


def _on_host(arrays: Arrays) -> Iterator[tuple[str, Block]]:
    """One array after the other in the host's memory."""
    for name, array in arrays.items():
        if isinstance(array, jax.Array):
            # An array keeps the copy that numpy once saw of it: so of another array of the same buffers, which goes.
            shards = [shard.data for shard in array.addressable_shards]
            array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
        yield name, np.asarray(array)
