"""The engine's side: takes requests of any number of front ends, and gives each the updates of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import msgspec
import zmq

from jaxserve.engine.activity import Activity
from jaxserve.engine.calls import AnyCall, EngineAnswer, run_call
from jaxserve.engine.core import EngineCore
from jaxserve.engine.link import EngineDescription, EngineLoad, HeldChange, load_of
from jaxserve.engine.loop import EngineLoop, Refusal, TurnOutcome
from jaxserve.engine.remote.codec import decoder, encode, presentable
from jaxserve.engine.remote.curve import CurveKeys, lock, require_key
from jaxserve.engine.remote.held import Changed, HeldPages, Looked
from jaxserve.engine.remote.messages import (
    Abort,
    Add,
    Answer,
    Call,
    Demote,
    Farewell,
    FromEngine,
    Held,
    Hello,
    Ping,
    Pong,
    Turned,
    Watch,
    Welcome,
    decode_from_frontend,
    protocol,
)
from jaxserve.errors import ConfigError, EngineDeadError, InternalError, JaxserveError, OverloadedError, brief, contained
from jaxserve.scheduler.request import Update

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25  # between heartbeats
STALLED_SECONDS = 1.0  # without a tick
MAX_UNREAD = 1000  # messages, each of a step, that a front end may leave unread; its process holds as many again
LINGER_MS = 500  # for the last words of an engine that dies
WAKES = 4096  # bytes, each a wish to be woken, that are taken at once
BURST = 256  # messages taken in one after another before what the engine produced is looked at

_CALL: msgspec.msgpack.Decoder[AnyCall] = decoder(AnyCall)


@dataclass(slots=True)
class _FrontEnd:
    """A front end, and its sequences that have not ended. What it does not read is kept from it until it is told so."""

    sequences: set[str] = field(default_factory=set)
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What of a turn is one front end's."""

    updates: list[Update] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Turn:
    outcomes: Sequence[TurnOutcome]
    load: EngineLoad


@dataclass(frozen=True, slots=True)
class _Answered:
    client: bytes
    number: int
    done: Future[EngineAnswer]


@dataclass(frozen=True, slots=True)
class _Listen:
    address: str


@dataclass(frozen=True, slots=True)
class _Death:
    error: BaseException


class EngineServer:
    """Runs an engine for front ends that connect to its address.

    The engine's loop has a thread of its own; `serve` does all input and output in the calling one, so that a front end that
    does not read, or sends a lot, never holds up a step.

    Args:
        description: told to every front end.
        address: ZeroMQ endpoint to listen on, such as "ipc:///run/jaxserve/engine".
        keys: of an engine that listens on a network, so that only those get in who have its public one; other machines must
            not reach it without. Raises ConfigError.
        max_unread: messages that wait for one front end at most; then it loses its requests.
    """

    def __init__(
        self,
        core: EngineCore,
        description: EngineDescription,
        address: str,
        *,
        max_unread: int = MAX_UNREAD,
        keys: CurveKeys | None = None,
    ) -> None:
        require_key(address, keys)
        self._core = core
        self._keys = keys
        self._description = description
        self._engine = EngineLoop(core, self._produced, self._died)
        self._mail: queue.SimpleQueue[_Turn | _Answered | _Listen | _Death | Changed | Looked] = queue.SimpleQueue()
        self._held = HeldPages(core.scheduler.cache.windows, self._post)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # a front end that is gone or does not read is an error, not silence
        self._router.set(zmq.SNDHWM, max_unread)
        self._router.set(zmq.LINGER, LINGER_MS)
        if keys is not None:
            lock(self._router, keys)
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InternalError(f"the engine cannot listen at {address}: {zmq.strerror(error.errno or 0)}") from error
        self._front_ends: dict[bytes, _FrontEnd] = {}
        self._owners: dict[str, bytes] = {}  # sequence -> front end
        self._death: BaseException | None = None
        self._stopped = False
        self._ticked = time.monotonic()

    @property
    def heartbeat(self) -> float:
        """Time by which both the loop and `serve` are known to have turned, by the machine's monotonic clock."""
        return min(self._engine.heartbeat, self._ticked)

    @property
    def activity(self) -> Activity:
        """What the loop does; if `serve` does not turn, nobody hears of it, and that should take no time."""
        ticked = self._ticked
        return self._core.activity if time.monotonic() - ticked < STALLED_SECONDS else Activity(ticked, 0.0)

    def serve(self) -> None:
        """Run until `stop`. Raises what the engine died of, once the front ends were told."""
        self._engine.start()
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        tick = 0.0
        try:
            while not self._stopped and self._death is None:
                ready = dict(poller.poll(math.ceil(max(0.0, tick - time.monotonic()) * 1000)))
                if self._router in ready:
                    self._receive()
                if self._woken.fileno() in ready:
                    self._read_mail()
                if time.monotonic() >= tick:
                    self._ticked = time.monotonic()
                    tick = self._ticked + TICK_SECONDS
                    self._tick()
        finally:
            self._engine.stop()
            self._close()
        if self._death is not None:
            raise self._death

    def stop(self) -> None:
        """End `serve` after the engine's current step. May be called by a signal handler or from any thread."""
        self._stopped = True
        self._wake()

    def listen(self, address: str) -> None:
        """Listen at one more endpoint; for front ends to come, where the first was lost. From any thread."""
        self._mail.put(_Listen(address))
        self._wake()

    def between_turns(self, function: Callable[[], None]) -> None:
        """Run a function in the engine's thread, between two turns. From any thread."""
        self._engine.call(lambda core: function())

    def _close(self) -> None:
        self._router.close()
        self._context.term()
        self._waker.close()
        self._woken.close()

    # In the engine's thread.

    def _produced(self, outcomes: list[TurnOutcome]) -> None:
        self._mail.put(_Turn(outcomes, load_of(self._core)))
        self._wake()

    def _died(self, error: BaseException) -> None:
        self._mail.put(_Death(error))
        self._wake()

    def _post(self, item: Changed | Looked) -> None:
        self._mail.put(item)
        if isinstance(item, Looked):  # changes are told at the next tick
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full, and it will wake up anyway; or it ended
            self._waker.send(b"\0")

    # In the thread of `serve`.

    def _receive(self) -> None:
        for _ in range(BURST):
            try:
                client, content = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_from_frontend(content)
            except Exception as error:
                logger.error("received a malformed message from an API server: %s", brief(error))
                self._send(client, Farewell(InternalError(f"the engine did not understand: {brief(error)}")))
                continue
            if isinstance(message, Hello):
                self._welcome(client, message)
            elif client in self._front_ends:
                try:
                    self._take(client, self._front_ends[client], message)
                except zmq.ZMQError:
                    raise
                except Exception:
                    logger.exception("a message of an API server could not be processed")

    def _welcome(self, client: bytes, hello: Hello) -> None:
        if hello.protocol != protocol():
            error = InternalError(f"the engine is {protocol()}, the front end {hello.protocol}: both must be the same")
            self._send(client, Farewell(error))
            return
        self._front_ends[client] = _FrontEnd()
        self._send(client, Welcome(self._description))
        self._beat(client)

    def _take(self, client: bytes, front_end: _FrontEnd, message: Add | Abort | Demote | Call | Watch | Ping) -> None:
        if isinstance(message, Add):
            try:
                requests = message.requests
            except Exception as error:
                logger.error("a request could not be decoded", exc_info=error)
                refusal = Refusal(tuple(message.ids), contained(error, "decoding it"))
                self._send(client, Turned(self._engine.heartbeat, load_of(self._core), (), [refusal]))
                return
            front_end.sequences.update(message.ids)
            self._owners.update((sequence, client) for sequence in message.ids)
            self._engine.add(requests)
        elif isinstance(message, Abort):
            self._forget(message.ids)
            self._engine.abort(message.ids)
        elif isinstance(message, Demote):
            self._engine.demote(message.ids, demoted=message.demoted)
        elif isinstance(message, Watch):
            self._held.asked(client, message.every)
            self._engine.call(partial(self._held.look, client=client, every=message.every))
        elif isinstance(message, Ping):
            self._send(client, Pong(message.sent, time.monotonic()))
        else:
            try:
                call = _CALL.decode(message.call)
            except Exception as error:
                refused = InternalError(f"the engine did not understand the call: {brief(error)}")
                self._send(client, Answer(message.number, error=refused))
                return
            future = self._engine.call(partial(run_call, call=call))
            future.add_done_callback(partial(self._answered, client, message.number))

    def _answered(self, client: bytes, number: int, done: Future[EngineAnswer]) -> None:
        """In whichever thread the call was answered."""
        self._mail.put(_Answered(client, number, done))
        self._wake()

    def _read_mail(self) -> None:
        self._woken.recv(WAKES)  # what is left of more than that wakes it again
        self._take_mail()

    def _take_mail(self) -> None:
        while not self._mail.empty():
            item = self._mail.get_nowait()
            if isinstance(item, _Turn):
                self._deal(item)
            elif isinstance(item, _Answered):
                self._answer(item)
            elif isinstance(item, _Listen):
                self._listen(item.address)
            elif isinstance(item, Changed):
                self._held.changed(item)
            elif isinstance(item, Looked):
                self._tell_held(self._held.looked(item), [item.client])
            else:
                self._death = item.error
                dead = Farewell(EngineDeadError(f"the engine died: {brief(item.error)}"), self._core.death)
                for client in list(self._front_ends):
                    self._send(client, dead)

    def _listen(self, address: str) -> None:
        try:
            require_key(address, self._keys)
            self._router.bind(address)  # the old one is kept: to unbind it would end its connections
        except (zmq.ZMQError, ConfigError) as error:
            logger.error("the engine cannot listen at %s: %s", address, error)

    def _deal(self, turn: _Turn) -> None:
        """Give each front end the outcomes of its sequences, in one message."""
        shares, ended = deal(turn.outcomes, self._owners)
        self._forget(ended)
        for client, share in shares.items():
            heartbeat, activity = self._engine.heartbeat, self._core.activity
            message = Turned(heartbeat, turn.load, share.updates, share.refusals, activity)
            try:
                content = encode(message)
            except Exception:
                content = encode(self._encodable(message))
            self._send_encoded(client, content)

    def _encodable(self, message: Turned) -> Turned:
        """The message without the outputs that cannot be encoded: their sequences end with an error."""
        updates, refusals = list(message.updates), list(message.refusals)
        for place, update in enumerate(updates):
            if (error := _encoding_error(update)) is not None:
                updates[place] = Update(update.id, error=error)
                self._forget([update.id])
                self._engine.abort([update.id])
        for place, refusal in enumerate(refusals):
            if (error := _encoding_error(refusal)) is not None:
                refusals[place] = Refusal(refusal.ids, error)
        return Turned(message.heartbeat, message.load, updates, refusals, message.activity)

    def _answer(self, item: _Answered) -> None:
        try:
            answer = Answer(item.number, msgspec.Raw(encode(item.done.result())))
        except Exception as error:
            answer = Answer(item.number, error=presentable(error))
        self._send(item.client, answer)

    def _tick(self) -> None:
        """Tell every front end that the engine is there; whichever is not, or does not read, is noticed."""
        for client, front_end in list(self._front_ends.items()):
            if front_end.unread:
                error = OverloadedError("the front end did not read what the engine had for it, and lost its requests")
                front_end.unread = False
                self._send(client, Farewell(error))
            else:
                self._beat(client)
        self._take_mail()
        self._tell_held(self._held.take(), self._held.told)

    def _tell_held(self, change: HeldChange | None, clients: Sequence[bytes]) -> None:
        if change is not None:
            for client in clients:
                self._send(client, Held(change))

    def _beat(self, client: bytes) -> None:
        self._send(client, Turned(self._engine.heartbeat, load_of(self._core), activity=self._core.activity))

    def _send(self, client: bytes, message: FromEngine) -> None:
        self._send_encoded(client, encode(message))

    def _send_encoded(self, client: bytes, content: bytes) -> None:
        try:
            self._router.send_multipart((client, content), zmq.NOBLOCK)
        except zmq.Again:
            if client in self._front_ends:
                self._cut_off(client)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._gone(client)

    def _cut_off(self, client: bytes) -> None:
        front_end = self._front_ends[client]
        if front_end.sequences:
            logger.warning("a front end does not read: %d of its sequences are aborted", len(front_end.sequences))
        front_end.unread = True
        self._abort_all(front_end)

    def _gone(self, client: bytes) -> None:
        front_end = self._front_ends.pop(client, None)
        if front_end is None:
            return
        if self._held.gone(client):
            self._engine.call(self._held.stop)
        if front_end.sequences:
            logger.warning("a front end went away: %d of its sequences are aborted", len(front_end.sequences))
        self._abort_all(front_end)

    def _abort_all(self, front_end: _FrontEnd) -> None:
        ids = list(front_end.sequences)
        self._forget(ids)
        self._engine.abort(ids)

    def _forget(self, ids: Sequence[str]) -> None:
        for sequence in ids:
            owner = self._owners.pop(sequence, None)
            if owner is not None and owner in self._front_ends:
                self._front_ends[owner].sequences.discard(sequence)


def _encoding_error(outcome: TurnOutcome) -> JaxserveError | None:
    """The error that a request ends with because its outcome cannot be encoded; None if it can be."""
    try:
        encode(outcome)
    except Exception as error:
        logger.exception("an output could not be encoded")
        return contained(error, "sending its output")
    return None


def deal(outcomes: Sequence[TurnOutcome], owners: Mapping[str, bytes]) -> tuple[Mapping[bytes, Share], list[str]]:
    """The outcomes of a turn by the owner of their sequences, and the sequences that ended; what nobody owns is left out."""
    shares: defaultdict[bytes, Share] = defaultdict(Share)
    ended: list[str] = []
    for outcome in outcomes:
        name = outcome.ids[0] if isinstance(outcome, Refusal) else outcome.id
        owner = owners.get(name)
        if owner is None:  # aborted in the meantime
            continue
        if isinstance(outcome, Refusal):
            shares[owner].refusals.append(outcome)
            ended += outcome.ids
            continue
        shares[owner].updates.append(outcome)
        if outcome.finish_reason is not None or outcome.error is not None:
            ended.append(name)
    return shares, ended
