"""Bodies that are held: one by one and all together within bounds, a tenant within its share."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from jaxserve.config.server import ServerConfig
from jaxserve.errors import CancelledRequestError, OverloadedError, RequestTooLargeError
from server.http.held import Bodies

MIB = 2**20


def bodies(tmp_path: Path, *, keys: bool = True, longest: int = MIB) -> Bodies:
    return Bodies(ServerConfig(keys=str(tmp_path) if keys else None, max_body_bytes=longest, max_bodies_mib=8))


def test_a_tenant_leaves_room_for_others(tmp_path: Path) -> None:
    held = bodies(tmp_path)
    held.take("acme", MIB, MIB)
    held.take("acme", MIB, MIB)
    with pytest.raises(OverloadedError, match=f"{2 * MIB} bytes .* for this client.s tenant, and 1 more"):
        held.take("acme", 1, 1)
    for tenant in ("globex", "hooli", "initech"):
        held.take(tenant, MIB, MIB)
        held.take(tenant, MIB, MIB)
    with pytest.raises(OverloadedError, match=f"{8 * MIB} bytes of request bodies are being answered, and 1 more"):
        held.take("umbrella", 1, 1)
    held.give_back("acme", MIB)
    held.take("umbrella", 1, 1)


def test_a_share_holds_the_longest_body(tmp_path: Path) -> None:
    held = bodies(tmp_path, longest=4 * MIB)
    held.take("acme", 4 * MIB, 4 * MIB)
    with pytest.raises(RequestTooLargeError, match="--max-body-bytes"):
        held.take("globex", 4 * MIB + 1, 1)


def test_a_body_with_weights_may_be_longer_but_no_longer_than_all(tmp_path: Path) -> None:
    held = bodies(tmp_path)  # 64 MiB of weights by default, of 8 in all
    held.take("acme", 8 * MIB, 8 * MIB, has_weights=True)
    with pytest.raises(OverloadedError):
        held.take("acme", MIB, MIB, has_weights=True)
    held.give_back("acme", 8 * MIB)
    with pytest.raises(RequestTooLargeError, match=f"longer than the {8 * MIB} bytes .*--max-weights-mib"):
        held.take("acme", 8 * MIB + 1, 1, has_weights=True)
    with pytest.raises(RequestTooLargeError, match="--max-body-bytes"):
        held.take("acme", MIB + 1, 1)
    settings = ServerConfig(keys=str(tmp_path), max_body_bytes=MIB, max_weights_mib=2, max_bodies_mib=8)
    with pytest.raises(RequestTooLargeError, match=f"longer than the {2 * MIB} bytes"):
        Bodies(settings).take("acme", 2 * MIB + 1, 1, has_weights=True)


def test_without_keys_all_clients_share_everything(tmp_path: Path) -> None:
    held = bodies(tmp_path, keys=False)
    for _ in range(8):
        held.take("", MIB, MIB)
    with pytest.raises(OverloadedError):
        held.take("", 1, 1)


async def test_what_is_held_is_given_back_when_the_client_leaves(tmp_path: Path) -> None:
    held = bodies(tmp_path, longest=8 * MIB)

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    for _ in range(3):
        with held.hold("acme") as one, pytest.raises(CancelledRequestError):
            await one.read(gone, Headers({"content-length": str(8 * MIB)}))
