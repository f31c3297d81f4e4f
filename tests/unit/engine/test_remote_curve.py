"""Which endpoints need keys."""

from __future__ import annotations

import pytest
import zmq

from jaxserve.engine.remote.curve import CurveKeys, require_key
from jaxserve.errors import ConfigError


@pytest.mark.parametrize(
    "address",
    ["ipc:///run/engine", "inproc://engine", "tcp://127.0.0.1:5000", "tcp://127.8.8.8:1", "tcp://[::1]:1", "tcp://localhost:1"],
)
def test_what_other_machines_do_not_reach_needs_none(address: str) -> None:
    require_key(address, None)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:1",
        "tcp://*:1",
        "tcp://10.0.0.1:1",
        "tcp://[::]:1",
        "tcp://eth0:1",
        "tcp://localhost.example:1",
        "ws://10.0.0.1:1",
    ],
)
def test_what_they_reach_does(address: str) -> None:
    with pytest.raises(ConfigError, match="keys") as refused:
        require_key(address, None)
    assert address in refused.value.message
    require_key(address, CurveKeys.new())


def test_keys_where_there_is_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "curve")
    require_key("ipc:///run/engine", None)
    with pytest.raises(ConfigError, match="CURVE"):
        require_key("tcp://127.0.0.1:1", CurveKeys.new())
