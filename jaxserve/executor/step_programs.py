"""The compiled steps: some before the engine is ready, the others behind its back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from jaxserve.jax_settings import engine_settings
from jaxserve.sampling.options import Need
from jaxserve.sampling.variants import Variant
from jaxserve.step.buckets import Bucket, BucketGrid

logger = logging.getLogger(__name__)

Choice = tuple[int, int, Variant]
"""Rows, drafts that they may have, and which variant chooses their tokens."""


class DraftPrograms(NamedTuple):
    """What a draft model does behind a step (`executor.draft_step`): follows it, and guesses one token of every row."""

    follow: Any
    guess: Any


class StepProgram(NamedTuple):
    """The compiled halves of a step (`executor.step`), and what follows them if there is a draft model."""

    forward: Any
    choose: Any
    draft: DraftPrograms | None = None


NO_DRAFTS: Mapping[Bucket, DraftPrograms] = MappingProxyType({})


class StepCompiler(Protocol):
    """What makes the halves of a step; called from one thread at a time."""

    def forward(self, bucket: Bucket) -> Any: ...

    def choose(self, rows: int, drafts: int, variant: Variant) -> Any: ...

    def draft(self, bucket: Bucket) -> DraftPrograms | None: ...


class StepPrograms:
    """Programs by bucket, and by what rows need. A thread compiles those that are missing.

    Plans whose bucket is not compiled yet are padded up to one that is. Steps whose variant is not compiled yet use one that does
    more, and have theirs compiled: nobody waits for one, and none is made that nobody uses.

    Attributes:
        misses: how many plans were padded up.

    Args:
        variants: the last of them does everything.
        forwards: those that are there already; one of them holds every plan.
        chooses: likewise; for each of the `forwards` the variant that does everything is there.
        drafts: what follows each of the `forwards`; empty without a draft model.
    """

    def __init__(
        self,
        grid: BucketGrid,
        variants: Sequence[Variant],
        forwards: Mapping[Bucket, Any],
        chooses: Mapping[Choice, Any],
        compiler: StepCompiler,
        drafts: Mapping[Bucket, DraftPrograms] = NO_DRAFTS,
    ) -> None:
        self.misses = 0
        self._grid = grid
        self._variants = tuple(variants)
        self._forwards = dict(forwards)
        self._chooses = dict(chooses)
        self._drafts = dict(drafts)
        self._compiler = compiler
        self._lock = threading.Lock()
        self._asked: set[Choice] = set()
        self._choices: deque[Choice] = deque()  # to be compiled, before the next of the buckets: they are quick
        self._buckets = deque(bucket for bucket in grid.buckets if bucket not in self._forwards)  # likewise
        self._thread: threading.Thread | None = None
        if self._buckets:
            self._start()

    def bucket(self, tokens: int, rows: int, longest: int = 1, drafts: int = 0, *, adapted: bool = False) -> Bucket:
        """The cheapest compiled bucket that holds a plan (`BucketGrid.choose`). Raises ValueError for one beyond the limits."""
        bucket = self._grid.choose(tokens, rows, longest, drafts=drafts, adapted=adapted)
        if bucket in self._forwards:
            return bucket
        self.misses += 1
        return self._grid.choose(tokens, rows, longest, among=self._forwards, drafts=drafts, adapted=adapted)

    def program(self, bucket: Bucket, needs: Collection[Need]) -> StepProgram:
        """The step of a compiled bucket whose rows need this."""
        able = [variant for variant in self._variants if variant.needs.issuperset(needs)]
        choices = [(bucket.rows, bucket.drafts, variant) for variant in able]
        if choices[0] not in self._chooses:
            self._ask(choices[0])
        choose = next(self._chooses[choice] for choice in choices if choice in self._chooses)
        return StepProgram(self._forwards[bucket], choose, self._drafts.get(bucket))

    def forwards(self) -> dict[Bucket, Any]:
        """First halves that are compiled."""
        return dict(self._forwards)

    def chooses(self) -> dict[Choice, Any]:
        """Second halves that are compiled."""
        return dict(self._chooses)

    def num_compiled(self) -> int:
        guesses = {id(draft.guess) for draft in self._drafts.values()}  # buckets of as many rows have the same one
        return len(self._forwards) + len(self._chooses) + len(self._drafts) + len(guesses)

    def wait(self) -> None:
        """Until all is compiled that was asked for."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _ask(self, choice: Choice) -> None:
        if choice in self._asked:
            return
        self._asked.add(choice)
        with self._lock:
            self._choices.append(choice)
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._compile, name="jaxserve-compile")
        self._thread.start()

    def _next(self) -> Choice | Bucket | None:
        """What to compile; after None another thread is started for what is missing then."""
        with self._lock:
            if self._choices:
                return self._choices.popleft()
            if self._buckets:
                return self._buckets.popleft()
            self._thread = None
            return None

    @engine_settings()
    def _compile(self) -> None:
        while threading.main_thread().is_alive() and (missing := self._next()) is not None:  # a process that ends waits for us
            try:
                if isinstance(missing, Bucket):
                    self._add(missing)
                else:
                    self._chooses[missing] = self._compiler.choose(*missing)
            except Exception:  # serving goes on without it: others hold its plans, and do what it does
                logger.exception("compiling %s failed", _described(missing))
        logger.info("%d halves of steps are compiled", self.num_compiled())

    def _add(self, bucket: Bucket) -> None:
        everything = bucket.rows, bucket.drafts, self._variants[-1]
        if everything not in self._chooses:
            self._chooses[everything] = self._compiler.choose(*everything)
        draft = self._compiler.draft(bucket)
        if draft is not None:
            self._drafts[bucket] = draft
        self._forwards[bucket] = self._compiler.forward(bucket)


def _described(missing: Choice | Bucket) -> str:
    if isinstance(missing, Bucket):
        return f"the step of {missing.tokens} tokens in {missing.rows} rows"
    return f"the {missing[2].name} choice of {missing[0]} rows"
