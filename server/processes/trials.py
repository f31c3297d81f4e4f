"""The supervisor's side of finding requests that end the engine: it alone knows of every API server what was in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jaxserve.engine.replicas.resuming import Orders
from jaxserve.engine.replicas.suspects import Suspects
from server.processes.specs import EngineFound, EngineLost, Notice, SuspectEnded, TrialPassed, TrialQuestion

_LOG = logging.getLogger(__name__)

REPORT_SECONDS = 0.5  # for API servers to report what was in flight
TRIAL_TOKENS = 8  # a request that ended an engine resumes at the token that it did so at
TRIAL_SECONDS = 5.0  # that a trial may last
LONGEST = 2**5  # times the tokens and the seconds, for requests that were in many engines that ended
OPEN_SECONDS = 5.0  # for others to run between two trials, after a trial ended an engine


class Trials:
    """Decides which requests may be in the engine.

    Trials follow one another while engines live. After one that ended its engine, all that is not suspected runs for a while
    first, so that others do not wait for a long search.

    Args:
        tell: passes orders on to all processes that speak to the engine, those that start later too.
    """

    def __init__(self, tell: Callable[[Notice], None]) -> None:
        self._tell = tell
        self._suspects = Suspects()
        self._owners: dict[str, str] = {}  # suspect -> the process whose it is
        self._early: dict[str, list[str]] = {}  # process -> what was in flight, by reports that came before the engine's end
        self._reported: dict[str, list[str]] | None = None  # the same, while reports are waited for
        self._orders = Orders(number=0)
        self._timer: asyncio.TimerHandle | None = None
        self._trial_ended_engine = False

    def answer(self, process: str, question: TrialQuestion) -> Orders | None:
        """Take what a process says or asks."""
        if isinstance(question, EngineFound):
            self._suspect_late(self._early.pop(process, []))
            return self._orders
        if isinstance(question, EngineLost):
            self._take_report(process, question.in_flight)
        elif isinstance(question, TrialPassed):
            if self._suspects.passed(question.request):
                self._go_on()
        else:
            self._owners.pop(question.request, None)
            for names in (*self._early.values(), *(self._reported or {}).values()):
                if question.request in names:
                    names.remove(question.request)
            if self._suspects.ended(question.request):
                self._go_on()
        return None

    def gone(self, process: str) -> None:
        """A process ended, and its requests with it."""
        for name in [name for name, owner in self._owners.items() if owner == process]:
            self.answer(process, SuspectEnded(name))

    async def engine_ended(self) -> bool:
        """Nothing runs until the next engine is up. Returns whether any request was in the one that ended."""
        self._cancel_timer()
        self._reported, self._early = self._early, {}
        self._give(trial=[])
        await asyncio.sleep(REPORT_SECONDS)
        reported, self._reported = self._reported, None
        tried = bool(self._suspects.trial)
        in_flight = [name for names in reported.values() for name in names]
        guilty = self._suspects.died(in_flight)
        self._trial_ended_engine = tried
        for name in guilty:
            _LOG.error("request %s ended the engine while it ran alone, and is refused", name)
            self._owners.pop(name, None)
        self._give(trial=[], convicted=guilty)
        return bool(in_flight) or tried

    def engine_up(self) -> None:
        """An engine is ready, with nothing in it."""
        if self._trial_ended_engine and self._suspects.any:
            self._trial_ended_engine = False
            self._give(trial=None)
            self._after(OPEN_SECONDS, self._go_on)
        else:
            self._go_on()

    def _take_report(self, process: str, in_flight: list[str]) -> None:
        self._owners.update(dict.fromkeys(in_flight, process))
        (self._early if self._reported is None else self._reported)[process] = in_flight

    def _suspect_late(self, in_flight: list[str]) -> None:
        """A process that is connected to the next engine had these in the one before, and reported it late."""
        if in_flight:
            self._suspects.suspect(in_flight)
            if self._orders.trial is None and self._timer is None:
                self._go_on()

    def _go_on(self) -> None:
        """Begin the next trial, or let everything run."""
        self._cancel_timer()
        trial = list(self._suspects.begin()) if not self._suspects.trial else list(self._suspects.trial)
        if not trial:
            self._give(trial=None)
            return
        times = min(2 ** (self._suspects.deaths(trial) - 1), LONGEST)
        _LOG.warning("%d of the requests that were in an engine that ended run apart", len(trial))
        self._give(trial=trial, tokens=TRIAL_TOKENS * times)
        self._after(TRIAL_SECONDS * times, self._clear)

    def _clear(self) -> None:
        self._suspects.clear_trial()
        self._go_on()

    def _give(self, trial: list[str] | None, tokens: int = 0, convicted: list[str] | None = None) -> None:
        held = sorted(self._suspects.held)
        number = self._orders.number + 1
        self._orders = Orders(number=number, trial=trial, held=held, convicted=convicted or [], tokens=tokens)
        self._tell(self._orders)

    def _after(self, seconds: float, function: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, function)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
