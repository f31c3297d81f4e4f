"""Where an engine process listens and shares its metrics, which its parent may change at any time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from jaxserve.config.runtime import share_metrics_in
from jaxserve.engine.remote.reports import EngineSpec, Move, decode_move
from jaxserve.engine.remote.server import EngineServer
from jaxserve.metrics.instruments import Instruments

logger = logging.getLogger(__name__)

Open = Callable[[str, Instruments], EngineServer]
"""(address, instruments) -> a server that listens there and records with them."""


class Place:
    """The place that the parent named last.

    Args:
        spec: names the first.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._address = spec.address
        self._lock = threading.Lock()
        self._opened: tuple[EngineServer, Instruments] | None = None

    def open(self, build: Open) -> EngineServer:
        with self._lock:  # what is heard in the meantime is for what was built
            instruments = Instruments()
            server = build(self._address, instruments)
            self._opened = (server, instruments)
        return server

    def take(self, content: bytes) -> None:
        move = decode_move(content)
        with self._lock:
            self._address = move.address
            share_metrics_in(Path(move.metrics))
            if self._opened is not None:
                self._move(*self._opened, move)

    def _move(self, server: EngineServer, instruments: Instruments, move: Move) -> None:
        def carry() -> None:
            try:
                instruments.move(Path(move.metrics))
            except OSError as error:
                logger.error("the engine's metrics cannot be shared in %s: %s", move.metrics, error)

        server.listen(move.address)
        server.between_turns(carry)
