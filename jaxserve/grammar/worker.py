"""The grammar worker process: prepares untrusted grammars with limits on CPU time and memory.

It reads the vocabulary once and forks a runner, which takes one job after another. A runner that exceeds a limit is killed by the
kernel; the worker reports its signal and forks the next one in milliseconds. SIGUSR1 kills the runner on request.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

import msgspec

from jaxserve.children import PR_SET_PDEATHSIG, Parent, adopt
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.compile import NICENESS, STACK_BYTES
from jaxserve.grammar.prepare import Form, Prepared, prepare
from jaxserve.grammar.vocabulary import Vocabulary, load_vocabulary
from jaxserve.heap import allocated

# Schemas of 2,000 properties take 0.2 s if all are required and 0.6 s if none is, and 10 MB; ordinary ones take 2 ms and 1 MB.
CPU_SECONDS = 1.0
MEMORY_BYTES = 512 * 2**20
KEPT_BYTES = 64 * 2**20  # of a compiled grammar, which the engine holds as long as requests use it

MAX_GROWTH = 32 * 2**20  # bytes that jobs may leave behind in a runner

# Address space of a thread that compiles: the C library reserves an arena. The next thread may start before one has ended.
_ARENA_BYTES = 128 * 2**20
_THREADS = 2
_AWAITED = (signal.SIGCHLD, signal.SIGUSR1)
_EXIT_ORPHANED, _EXIT_FAILED = 3, 64


class WorkerSpec(msgspec.Struct, frozen=True, array_like=True):
    """The vocabulary of a worker (see `load_vocabulary`), and what each grammar may take."""

    tokenizer: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cpu_seconds: float = CPU_SECONDS
    memory_bytes: int = MEMORY_BYTES
    kept_bytes: int = KEPT_BYTES


class Begun(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A runner has read its job."""


class Passed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The grammar is within all limits. `growth`: bytes of memory that it took."""

    prepared: Prepared
    growth: int


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The grammar cannot be compiled."""

    message: str
    param: str | None


class OutOfMemory(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The grammar needs more memory than a runner may have."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Preparing the grammar raised an unexpected error."""

    error: str


class Died(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The runner ended in the middle of its job, by this signal; 0 if by none."""

    signal: int


Message = Begun | Passed | Refused | OutOfMemory | Failed | Died


def main() -> int:
    parent, first = adopt()
    spec = msgspec.msgpack.decode(first, type=WorkerSpec)
    os.nice(NICENESS)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal cannot be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    vocabulary = load_vocabulary(spec.tokenizer, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids)
    parent.send(b"")
    while True:
        runner = os.fork()
        if runner == 0:
            _run(parent, spec, vocabulary)
        code, was_killed = _await_end(runner)
        if code == _EXIT_ORPHANED:
            return code
        if code or was_killed:
            parent.send(msgspec.msgpack.encode(Died(max(-code, 0))))


def _await_end(runner: int) -> tuple[int, bool]:
    """Wait until a runner has ended. Returns its exit code, negative for a signal, and whether SIGUSR1 killed it."""
    was_killed = False
    while True:
        if signal.sigwait(_AWAITED) == signal.SIGUSR1:
            os.kill(runner, signal.SIGKILL)
            was_killed = True
        ended, status = os.waitpid(runner, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), was_killed


def _run(parent: Parent, spec: WorkerSpec, vocabulary: Vocabulary) -> None:
    """In a runner: do jobs until one has left memory behind. Does not return."""
    worker = os.getppid()
    try:
        _limit(spec.memory_bytes)
        if os.getppid() != worker:
            os._exit(_EXIT_ORPHANED)
        decoder: msgspec.msgpack.Decoder[Form] = msgspec.msgpack.Decoder(Form)
        before = _resident()
        while (content := parent.receive()) is not None:
            parent.send(msgspec.msgpack.encode(Begun()))
            signal.setitimer(signal.ITIMER_PROF, spec.cpu_seconds)
            reply = _reply(decoder.decode(content), spec, vocabulary)
            signal.setitimer(signal.ITIMER_PROF, 0)
            parent.send(reply)
            if _resident() - before > MAX_GROWTH:
                os._exit(0)
        os._exit(_EXIT_ORPHANED)
    finally:
        os._exit(_EXIT_FAILED)


def _limit(memory_bytes: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # allocators and panics complain
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = _pages(0) + _THREADS * (STACK_BYTES + _ARENA_BYTES) + memory_bytes
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _reply(form: Form, spec: WorkerSpec, vocabulary: Vocabulary) -> bytes:
    before = _held()
    reply: Message
    try:
        prepared, matcher = prepare(form, vocabulary)
        growth = max(_held() - before, 0)
        del matcher  # which had to live until here
        if growth > spec.kept_bytes:
            what = f"{form.param}: the compiled grammar takes more than {spec.kept_bytes // 2**20} MiB of memory"
            reply = Refused(what, form.param)
        else:
            reply = Passed(prepared, growth)
    except InvalidRequestError as error:
        reply = Refused(error.message, error.param)
    except MemoryError:
        reply = OutOfMemory()
    except BaseException as error:  # a panic of llguidance's is no Exception
        reply = OutOfMemory() if "can't start new thread" in str(error) else Failed(repr(error)[:500])
    return msgspec.msgpack.encode(reply)


def _held() -> int:
    """Bytes of memory that live objects take, as well as this machine says it."""
    held = allocated()
    return _resident() if held is None else held


def _resident() -> int:
    """Bytes of memory in use; 0 where that is not known."""
    return _pages(1)


def _pages(field: int) -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[field]) * resource.getpagesize()
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
