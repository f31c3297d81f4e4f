"""What a trainer's process sends, as a server hears it, and what becomes of refusals."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxserve.errors import CheckpointError, InvalidRequestError
from jaxserve.rollout.transfer import TransferError, WeightSender
from jaxserve.weights.live.pieces import read_piece
from sharding import make_mesh


class Server:
    """Answers as a server does, and puts parts together by plain loops.

    Args:
        refused: the path that is answered with an error.
    """

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.paths: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.flat: dict[str, dict[int, Any]] = {}
        self.keys: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            path = request.url.path
            self.paths.append(path)
            self.keys.add(request.headers["authorization"])
            if path == self.refused:
                return httpx.Response(409, json={"error": {"message": "not now", "param": "p", "code": "conflict"}})
            if path == "/update_weights":
                assert request.headers["content-type"] == "application/octet-stream"
                assert request.url.params["update_id"] == "u7"
                for part in read_piece(request.content):
                    for place, value in enumerate(part.elements.reshape(-1), part.start):
                        self.flat.setdefault(part.name, {})[place] = value
            elif request.content:
                self.bodies[path] = json.loads(request.content)
            return httpx.Response(200, json={"update_id": "u7", "weight_version": 5})

    def sender(self, **settings: Any) -> WeightSender:
        return WeightSender("http://server/", "k", client=httpx.Client(transport=httpx.MockTransport(self)), **settings)


def tree() -> dict[str, Any]:
    mesh = make_mesh(2)
    divided = jax.device_put(jnp.arange(24.0).reshape(4, 6), NamedSharding(mesh, PartitionSpec(None, mesh.axis_names[0])))
    return {"layers": [{"w": divided}, {"w": np.arange(5, dtype=np.float16)}], "norm": jnp.ones((3,), jnp.bfloat16)}


@pytest.mark.parametrize("piece_bytes", [8, 10_000])
def test_a_tree_is_announced_and_sent_in_pieces(piece_bytes):
    server, given = Server(), tree()
    assert server.sender(piece_bytes=piece_bytes).send(given, 5, mode="keep", force=True) == 5
    first, second, *pieces, last, end = server.paths
    assert (first, second) == ("/init_weight_transfer_engine", "/start_weight_update")
    assert (last, end) == ("/finish_weight_update", "/shutdown_weight_transfer_engine")
    assert set(pieces) == {"/update_weights"}
    assert len(pieces) == 1 if piece_bytes == 10_000 else len(pieces) > 12
    assert server.keys == {"Bearer k"}
    assert server.bodies[second] == {
        "names": ["layers.0.w", "layers.1.w", "norm"],
        "dtype_names": ["float32", "float16", "bfloat16"],
        "shapes": [[4, 6], [5], [3]],
        "mapping": "auto",
        "partial": False,
    }
    assert server.bodies[last] == {"weight_version": 5, "update_id": "u7", "mode": "keep", "force": True}
    expected = {"layers.0.w": given["layers"][0]["w"], "layers.1.w": given["layers"][1]["w"], "norm": given["norm"]}
    for name, array in expected.items():
        flat = np.asarray(array).reshape(-1)
        assert [server.flat[name][place] for place in range(flat.size)] == flat.tolist()
        assert len(server.flat[name]) == flat.size


def test_a_draft_is_announced_as_one_and_has_no_version():
    server = Server()
    server.sender().send_draft(tree())
    start, end = "/start_draft_weight_update", "/finish_weight_update"
    assert [server.paths[place] for place in (0, 1, -2)] == ["/init_weight_transfer_engine", start, end]
    assert server.bodies[start]["names"] == ["layers.0.w", "layers.1.w", "norm"]
    assert server.bodies[end] == {"update_id": "u7", "mode": "keep"}
    assert set(server.flat) == {"layers.0.w", "layers.1.w", "norm"}


def test_a_state_of_nnx():
    server = Server()
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
    server.sender().send(state)
    assert set(server.flat) == {"kernel", "bias"}


@pytest.mark.parametrize("refused", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_what_is_refused_is_dropped(refused):
    """The server's words are told, and it is told to keep nothing."""
    server = Server(refused)
    with pytest.raises(TransferError, match=f"{refused} was answered with 409: not now") as caught:
        server.sender(piece_bytes=8).send(tree())
    assert (caught.value.status, caught.value.param) == (409, "p")
    assert server.paths[-1] == "/shutdown_weight_transfer_engine"
    assert ("/finish_weight_update" in server.paths) == (refused == "/finish_weight_update")


def test_a_server_that_is_not_there():
    def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens")

    with (
        httpx.Client(transport=httpx.MockTransport(unreachable)) as client,
        pytest.raises(TransferError, match=r"did not get through.*nobody listens") as caught,
    ):
        WeightSender("http://server", "k", client=client).send(tree())
    assert caught.value.status is None


def test_an_answer_that_is_no_errors():
    with (
        httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(502, text="bad gateway"))) as client,
        pytest.raises(TransferError, match="answered with 502: bad gateway"),
    ):
        WeightSender("http://server", "k", client=client).send(tree())


def test_what_cannot_be_sent():
    server = Server()
    gone = jnp.ones(3)
    gone.delete()
    for given, message in (
        ({"w": np.ones(3)}, "w is float64"),
        ({"w": gone}, "w was deleted or donated"),
        ({"w": "text"}, "w is a str"),
    ):
        with pytest.raises(CheckpointError, match=message):
            server.sender().send(given)
    with pytest.raises(InvalidRequestError, match="piece_bytes must be at least 1"):
        server.sender(piece_bytes=0)
    assert not server.paths
