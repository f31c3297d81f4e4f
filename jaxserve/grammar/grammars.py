"""The grammars of an engine: prepared by workers in turns between tenants, compiled once for all requests with the same form."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from msgspec.structs import replace

from jaxserve.errors import EngineDeadError, InternalError, InvalidRequestError, JaxserveError
from jaxserve.grammar.matching import GrammarConstraint, GrammarMasker
from jaxserve.grammar.prepare import Compiled, Form, compile_prepared
from jaxserve.grammar.thinking import ThinkingBudget
from jaxserve.grammar.trials import LocalTrials, Trials, WorkerTrials
from jaxserve.grammar.turns import TenantTurns
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.grammar.worker import WorkerSpec
from jaxserve.sampling.response import ResponseParams

logger = logging.getLogger(__name__)

MAX_KEPT = 512  # compiled grammars that no request waits for
MAX_KEPT_BYTES = 32 * 2**20  # of them: ordinary ones take 0.1 to 1 MB
GRACE_SECONDS = 0.5  # that a running job may be abandoned
MAX_WORKERS = 4


@dataclass(eq=False, slots=True)
class _Job:
    """A form that is compiled, or has been.

    Attributes:
        pins: requests that wait for it, by tenant; it is neither evicted nor given up meanwhile.
        abandoned: time since which no request has waited for it.
        size: bytes of memory that it takes, at least.
    """

    form: Form
    future: Future[Compiled] = field(default_factory=Future)
    pins: Counter[str] = field(default_factory=Counter)
    abandoned: float = 0.0
    size: int = 0


class Grammars:
    """Compiles the forms of requests. Used by one thread; only `constraints` waits.

    Attributes:
        masker: makes the masks of its constraints.

    Args:
        vocab_size: V, of the model.
        vocabulary: reads the model's tokens; called once, when the first grammar is compiled.
        worker: the vocabulary for worker processes, which try grammars out within limits; None to trust all grammars.
    """

    def __init__(self, vocab_size: int, vocabulary: Callable[[], Vocabulary], worker: WorkerSpec | None = None) -> None:
        self.masker = GrammarMasker(vocab_size)
        self._read = vocabulary
        self._worker = worker
        self._vocabulary: Future[Vocabulary] | None = None
        self._jobs: OrderedDict[Form, _Job] = OrderedDict()
        self._turns: TenantTurns[_Job] = TenantTurns()
        self._lock = threading.Lock()  # guards the pins and the table of jobs

    def start(self) -> None:
        """Start the workers and read the vocabulary, if that has not been done. Does not wait for them."""
        if self._vocabulary is None:
            self._vocabulary = Future()
            threading.Thread(target=self._load, args=(self._vocabulary,), name="jaxserve-vocabulary", daemon=True).start()
            for _ in range(_num_workers()):
                threading.Thread(target=self._work, args=(self._vocabulary,), name="jaxserve-grammars", daemon=True).start()

    def compile(self, params: Form, tenant: str = "") -> Future[Compiled]:
        """The grammar. It stays until `release`, which must follow.

        The future raises InvalidRequestError for a form that cannot be compiled or exceeds a limit.
        """
        with self._lock:
            job = self._job(_key(params), tenant)
            job.pins[tenant] += 1
        return job.future

    def release(self, params: Form, tenant: str = "") -> None:
        """A request no longer waits for its grammar. Gives the job up if it was the last."""
        form = _key(params)
        with self._lock:
            job = self._jobs.get(form)
            if job is None:
                return
            job.pins[tenant] -= 1
            if job.pins[tenant] <= 0:
                del job.pins[tenant]
                self._turns.remove(tenant, job)
            job.abandoned = time.monotonic()
            if not job.pins and (job.future.cancel() or _may_pass_later(job.future)):
                del self._jobs[form]

    def constraints(self, params: Form) -> Callable[[], GrammarConstraint]:
        """A factory of constraints, one for each sequence. Waits for the grammar. Raises InvalidRequestError."""
        with self._lock:
            job = self._job(_key(params), "")
            job.pins[""] += 1
        try:
            compiled = job.future.result()
        finally:
            self.release(params)
        grammar, marks = compiled.matcher, compiled.thinking
        budget = params.max_thinking_tokens if isinstance(params, ResponseParams) and params.thinking != "none" else None
        if budget is None:
            return lambda: GrammarConstraint(grammar.deep_copy())
        if marks is None:
            raise InvalidRequestError(
                "max_thinking_tokens needs a response template that says how thinking is ended", param="max_thinking_tokens"
            )
        return lambda: ThinkingBudget(grammar.deep_copy(), marks, budget)

    def close(self) -> None:
        """End the workers. Jobs that were not done fail."""
        for job in self._turns.close():
            job.future.cancel()

    def _job(self, form: Form, tenant: str) -> _Job:
        """The job of a form, queued for the tenant unless it runs or is done."""
        self.start()
        job = self._jobs.get(form)
        if job is None:
            self._evict()
            job = self._jobs[form] = _Job(form, size=_text_size(form))
        self._jobs.move_to_end(form)
        is_queued = job.future.running() or job.future.done() or job.pins[tenant] or self._turns.put(tenant, job)
        if not is_queued:
            job.future.set_exception(EngineDeadError("the engine has ended"))
        return job

    def _evict(self) -> None:
        """Drop the grammars that were not used for the longest time, beyond the limits."""
        idle = [job for job in self._jobs.values() if job.future.done() and not job.pins]
        size = sum(job.size for job in idle)
        for place, job in enumerate(idle):
            if len(idle) - place < MAX_KEPT and size < MAX_KEPT_BYTES:
                break
            size -= job.size
            del self._jobs[job.form]

    def _load(self, vocabulary: Future[Vocabulary]) -> None:
        try:
            vocabulary.set_result(self._read())
        except BaseException as error:
            vocabulary.set_exception(error)

    def _work(self, vocabulary: Future[Vocabulary]) -> None:
        """In a thread: do jobs until the end."""
        trials = self._trials(vocabulary)
        try:
            trials.start()
            while (job := self._turns.take()) is not None:
                if self._claim(job):
                    self._do(job, trials, vocabulary)
        finally:
            trials.close()

    def _trials(self, vocabulary: Future[Vocabulary]) -> Trials:
        if self._worker is None or not self._worker.eos_token_ids:  # without which there is no vocabulary
            return LocalTrials(vocabulary.result)
        return WorkerTrials(self._worker)

    def _claim(self, job: _Job) -> bool:
        """Whether a job is still to be done, by the calling thread. Jobs of several tenants are taken several times."""
        with self._lock:
            return not job.future.running() and not job.future.done() and job.future.set_running_or_notify_cancel()

    def _do(self, job: _Job, trials: Trials, vocabulary: Future[Vocabulary]) -> None:
        param = job.form.param
        try:
            tokens = vocabulary.result()
            prepared, growth = trials.run(job.form, lambda: self._is_wanted(job))
            job.size += growth
            job.future.set_result(compile_prepared(prepared, param, tokens))
        except JaxserveError as error:
            job.future.set_exception(error)
        except BaseException as error:
            logger.exception("a grammar could not be compiled")
            job.future.set_exception(InternalError(f"{param}: compiling the grammar failed: {error!r}", param=param))

    def _is_wanted(self, job: _Job) -> bool:
        with self._lock:
            if job.pins or time.monotonic() - job.abandoned < GRACE_SECONDS:
                return True
            del self._jobs[job.form]
            return False


def _key(params: Form) -> Form:
    if isinstance(params, ResponseParams):
        return replace(params, max_thinking_tokens=None)  # which is no part of the grammar
    return params


def _text_size(form: Form) -> int:
    names = ("json", "regex", "grammar", "structural_tag", "template", "tools")
    return sum(len(text) for text in (getattr(form, name, None) for name in names) if isinstance(text, str))


def _may_pass_later(future: Future[Compiled]) -> bool:
    """Whether compiling failed for reasons that do not lie in the grammar."""
    return future.done() and future.exception() is not None and not isinstance(future.exception(), InvalidRequestError)


def _num_workers() -> int:
    return max(1, min(MAX_WORKERS, (os.cpu_count() or 2) // 4))
