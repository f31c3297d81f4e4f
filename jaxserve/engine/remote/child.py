"""The engine process: builds an engine, serves it until SIGTERM, and reports to its parent."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

import msgspec

from jaxserve.children import Parent, adopt
from jaxserve.engine.remote.builders import find_builder
from jaxserve.engine.remote.codec import encode, presentable
from jaxserve.engine.remote.curve import require_key
from jaxserve.engine.remote.place import Place
from jaxserve.engine.remote.pulse import send_pulse
from jaxserve.engine.remote.reports import EngineSpec, Failed, Progressed, Pulse, Ready
from jaxserve.engine.remote.server import EngineServer
from jaxserve.engine.watching import watch
from jaxserve.errors import JaxserveError
from jaxserve.heap import freeze_gc
from jaxserve.logs import set_up_logging
from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder

_EXIT_DIED = 1
_EXIT_REFUSED = 2

logger = logging.getLogger(__name__)


def main() -> int:
    """Run the engine process. Returns its exit code: 0 when told to end, 1 if the engine died, 2 if it could not be built."""
    parent, first = adopt()
    spec = msgspec.json.decode(first, type=EngineSpec)
    set_up_logging(spec.log_level, spec.log_format)
    place = Place(spec)
    parent.exit_when_gone(place.take)
    try:
        server = _build(spec, place, parent)
    except JaxserveError as error:
        parent.send(encode(Failed(presentable(error))))
        return _EXIT_REFUSED
    except Exception as error:
        logger.exception("the engine could not be built")
        parent.send(encode(Failed(presentable(error))))
        return _EXIT_DIED

    def on_signal(number: int, frame: FrameType | None) -> None:
        server.stop()

    signal.signal(signal.SIGTERM, on_signal)
    send_pulse(parent, lambda: Pulse(server.heartbeat, server.activity))
    try:
        server.serve()
    except Exception as error:
        logger.critical("the engine's process ends: %r", error, exc_info=error)
        return _EXIT_DIED
    return 0


def _build(spec: EngineSpec, place: Place, parent: Parent) -> EngineServer:
    def progress(what: str, done: int, total: int) -> None:
        parent.send(encode(Progressed(what, done, total)))

    require_key(spec.address, spec.keys)  # before an engine is built for nothing
    engine = find_builder(spec.builder)(spec.argument, progress)

    def listening(address: str, instruments: Instruments) -> EngineServer:
        process = ProcessRecorder(instruments, "engine", spec.restarts)
        instruments.counter(catalogue.ENGINE_HANGS).inc(int(spec.after_hang))
        watch(engine.core, engine.description.model.name, instruments, process=process)
        return EngineServer(engine.core, engine.description, address, max_unread=spec.max_unread, keys=spec.keys)

    server = place.open(listening)
    freeze_gc()
    parent.send(encode(Ready(engine.banner)))
    if engine.core.grammars is not None:
        engine.core.grammars.start()  # or the first request with a grammar would wait for it
    return server


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of a runtime that failed must not hold the exit
