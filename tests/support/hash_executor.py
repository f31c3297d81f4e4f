"""An executor whose output can be worked out by hand: the "cache" holds token ids, the next token is a hash of all before it.

It reads the sequence back from the pages it was told of, as attention would: a wrong page table, a page shared too early or
reused too soon, a token computed twice or never, a page copied or swapped wrongly, all change the output. `expected` is the
oracle. A row that sees the token `poison` has no valid logits. With groups of layers a token sees the window of each. A draft
model guesses what it chooses, and errs now and then. With recurrent states it checks which tokens those come of. An executor
that `suppresses` does not choose what would end a row before it has its `min_tokens`; others do, and the scheduler is to go on.
"""

import random
import zlib
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxserve.config.states import StatePlaces
from jaxserve.executor.base import Capabilities
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.sampling.options import MASKED, STANDARD, SUPPRESS
from jaxserve.step.plan import LogprobRows, MoveKind, Plan, Reading, StepResult
from tests.support.state_contents import StateContents

VOCAB = 50
UNWRITTEN = -7
Windows = tuple[int | None, ...]


def next_token(tokens: list[int], vocab: int = VOCAB) -> int:
    return zlib.crc32(np.array(tokens, np.int32).tobytes()) % vocab


def score_of(tokens: list[int], target: int) -> int:
    """What a target after these tokens is scored with: as its rank."""
    return zlib.crc32(np.array([*tokens, target], np.int32).tobytes()) % 10**6


def seen(tokens: list[int], windows: Windows = (None,)) -> list[int]:
    """What the last of the tokens sees, group after group."""
    return [token for window in windows for token in (tokens if window is None else tokens[-window:])]


def expected(
    prompt: list[int],
    count: int,
    stops: frozenset[int] = frozenset(),
    vocab: int = VOCAB,
    windows: Windows = (None,),
    min_tokens: int = 0,
) -> list[int]:
    tokens = list(prompt)
    for place in range(count):
        token = next_token(seen(tokens, windows), vocab)
        if place < min_tokens:
            token = first_allowed(token, [one for one in range(vocab) if one not in stops])
        tokens.append(token)
        if token in stops:
            break
    return tokens[len(prompt) :]


@dataclass
class HashHandle:
    executor: "HashExecutor"
    value: StepResult

    def result(self) -> StepResult:
        assert self.executor.in_flight.popleft() == self.value.step, "results are collected in order"
        waits = self.executor.unmasked is not None and self.executor.unmasked.step == self.value.step
        assert not waits, "a step with masked rows was never told what they may choose"
        return self.value

    def choose(self, masks: npt.NDArray[np.int32] | None) -> None:
        plan, self.executor.unmasked = self.executor.unmasked, None
        assert plan is not None, "a step is told what it may choose, and need not be"
        assert plan.step == self.value.step
        assert masks is not None
        tokens, width = self.value.tokens, self.value.tokens.shape[1]
        assert len(masks) == tokens.size, "a mask for every token that may be chosen"
        for row in np.flatnonzero(masked_rows(plan)):
            for place in range(1 + plan.num_drafts[row]):
                mask = np.unpackbits(masks[row * width + place].view(np.uint8), bitorder="little")[: self.executor.vocab]
                tokens[row, place] = first_allowed(int(tokens[row, place]), np.flatnonzero(mask).tolist())
            self.executor.take(plan, int(row), self.value)


def masked_rows(plan: Plan) -> npt.NDArray[np.bool_]:
    masked: npt.NDArray[np.bool_] = STANDARD.column(plan.sampling, MASKED) != 0
    return plan.samples & masked


def first_allowed(token: int, allowed: list[int]) -> int:
    """What a row chooses that would choose `token` and may not: the next one that it may."""
    return min(allowed, key=lambda one: (one < token, one), default=0) if token >= 0 else token


class HashExecutor:
    def __init__(
        self,
        num_pages: int,
        page_size: int,
        max_num_seqs: int,
        max_model_len: int = 64,
        vocab: int = VOCAB,
        *,
        swap_slots: int = 0,
        swap_page_seconds: float = 0.0,
        poison: int | None = None,
        windows: Windows = (None,),
        guesses: int = 0,
        wrong: float = 0.0,
        suppresses: bool = False,
        states: StatePlaces | None = None,
    ) -> None:
        self.pages = np.full((num_pages, page_size), UNWRITTEN, np.int32)
        self.swapped: dict[int, npt.NDArray[np.int32]] = {}  # by swap slot
        self.last = np.full(max_num_seqs, UNWRITTEN, np.int32)
        self.lengths = np.full(max_num_seqs, UNWRITTEN, np.int32)  # tokens of the sequence in each slot
        self.page_size = page_size
        self.max_model_len = max_model_len
        self.vocab = vocab
        self.swap_slots = swap_slots
        self.swap_page_seconds = swap_page_seconds
        self.poison = poison
        self.windows = windows
        self.guesses = np.full((max_num_seqs, guesses), UNWRITTEN, np.int32)  # behind the token last chosen in each slot
        self.wrong, self.chances = wrong, random.Random(0)
        self.suppresses = suppresses
        self.states = None if states is None else StateContents(states)
        self._drafted: dict[int, list[int]] = {}  # of the latest row of each slot
        self._known_length: dict[int, int] = {}  # of each slot's sequence without them
        self.in_flight: deque[int] = deque()
        self.unmasked: Plan | None = None  # the latest, if it waits for masks
        self.plans: list[Plan] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_num_seqs=len(self.last),
            max_num_batched_tokens=10**6,
            max_model_len=self.max_model_len,
            num_pages=len(self.pages),
            page_size=self.page_size,
            swap_slots=self.swap_slots,
            swap_page_seconds=self.swap_page_seconds,
            windows=self.windows,
            max_drafts=self.guesses.shape[1],
            guesses=self.guesses.shape[1],
            states=None if self.states is None else self.states.places,
        )

    def counts(self) -> ExecutorCounts:
        return ExecutorCounts(compiled_programs=1, padding_tokens=sum(-plan.num_tokens % 8 for plan in self.plans))

    def move_pages(self, plan: Plan) -> None:
        for kind, source, destination in plan.moves:
            if kind is MoveKind.TO_TIER:
                assert 0 <= destination < self.swap_slots, "there is no such swap slot"
                assert source > 0, "the null page is swapped"
                self.swapped[destination] = self.pages[source].copy()
            elif kind is MoveKind.FROM_TIER:
                assert source in self.swapped, "a swap slot is read before it is written"
                assert destination > 0, "a swapped page goes to the null page"
                self.pages[destination] = self.swapped.pop(source)
            else:
                assert min(source, destination) > 0, "the null page is copied"
                self.pages[destination] = self.pages[source]

    def submit(self, plan: Plan) -> HashHandle:
        assert self.unmasked is None, "another step is submitted before the one before was told what it may choose"
        self.plans.append(plan)
        self.in_flight.append(plan.step)
        self.unmasked = plan if masked_rows(plan).any() else None
        assert plan.num_rows == len(set(plan.ids)) == len(set(plan.slots.tolist()))
        self.move_pages(plan)
        tokens = [self._known(int(token)) for token in plan.tokens]
        spans = [range(plan.query_start[row], plan.query_start[row + 1]) for row in range(plan.num_rows)]
        lengths = [self._length(plan, row) for row in range(plan.num_rows)]
        for row, span in enumerate(spans):  # all writes before all reads, as in a layer
            start = lengths[row] - len(span)
            for offset, index in enumerate(span):
                page, place = divmod(start + offset, self.page_size)
                column = self._table(plan, row)[page]
                assert (column > 0).all(), "a token goes to the null page"
                self.pages[column, place] = tokens[index]
        if self.states is not None:
            whole = [self._by_group(plan, row, lengths[row])[0] for row in range(plan.num_rows)]
            self.states.submit(plan, whole, [len(span) for span in spans])
        out = np.full((plan.num_rows, 1 + int(plan.num_drafts.max(initial=0))), UNWRITTEN, np.int32)
        for row, span in enumerate(spans):
            drafts = int(plan.num_drafts[row])
            assert len(span) > drafts, "a row guesses after nothing"
            for place in range(1 + drafts):
                content = self._seen(plan, row, lengths[row] - drafts + place)
                out[row, place] = -1 if self.poison in content else self._choice(plan, row, content)
        scores = []
        for score in plan.readouts:
            span, length = spans[score.row], lengths[score.row]
            assert 0 < len(score.values) <= len(span) - score.offset, "a token is scored that the row does not compute"
            first = length - len(span) + score.offset + 1
            ranks = [score_of(self._seen(plan, score.row, first + index), target) for index, target in enumerate(score.values)]
            poisoned = [self.poison in self._seen(plan, score.row, first + index) for index in range(len(ranks))]
            chosen_of = np.where(poisoned, np.float32(np.nan), np.float32(0))
            tops = np.zeros((len(ranks), 0), np.int32)
            scores.append(Reading(LogprobRows(chosen_of, np.array(ranks, np.int32), tops, tops.view(np.float32))))
        result = StepResult(plan.step, out, np.zeros(plan.num_rows, np.int32), readings=tuple(scores))
        for row, span in enumerate(spans):
            if plan.samples[row]:
                slot, drafts = plan.slots[row], int(plan.num_drafts[row])
                self._drafted[slot] = tokens[span.stop - drafts : span.stop]
                self._known_length[slot] = lengths[row] - drafts
                self.take(plan, row, result)
        return HashHandle(self, result)

    def take(self, plan: Plan, row: int, result: StepResult) -> None:
        """Keep what a row chose, up to the first draft that is wrong."""
        slot = plan.slots[row]
        drafts, out = self._drafted[slot], result.tokens[row]
        right = next((place for place, draft in enumerate(drafts) if draft != out[place]), len(drafts))
        result.num_tokens[row] = 1 + right
        self.last[slot] = max(out[right], 0)
        self.lengths[slot] = self._known_length[slot] + 1 + right
        self._guess(plan, row, int(self.lengths[slot]) - 1)

    def _choice(self, plan: Plan, row: int, content: list[int]) -> int:
        """What a row chooses that sees this and has no mask."""
        if not self.suppresses:
            return next_token(content, self.vocab)
        suppressed = set(STANDARD.column(plan.sampling, SUPPRESS)[row].tolist())
        return first_allowed(next_token(content, self.vocab), [token for token in range(self.vocab) if token not in suppressed])

    def _known(self, token: int) -> int:
        """A token of a plan; negative ones are what a slot chose last, or what was guessed behind that."""
        if token >= 0:
            return token
        place, slot = divmod(-1 - token, len(self.last) + 1)
        known = int(self.last[slot] if place == 0 else self.guesses[slot, place - 1])
        assert known != UNWRITTEN, "nothing was guessed there"
        return known

    def _guess(self, plan: Plan, row: int, length: int) -> None:
        """What a draft model says of the tokens after so many, and the one that was just chosen."""
        slot = plan.slots[row]
        self.guesses[slot] = UNWRITTEN
        if not plan.guesses:
            return
        tokens, last = self._by_group(plan, row, length), int(self.last[slot])
        for place in range(plan.guesses):
            tokens = [[*held, last] for held in tokens]
            content = [token for held, window in zip(tokens, self.windows, strict=True) for token in seen(held, (window,))]
            last = next_token(content, self.vocab)
            if self.chances.random() < self.wrong:
                last = (last + 1) % self.vocab
            self.guesses[slot, place] = last

    def _length(self, plan: Plan, row: int) -> int:
        """Tokens of the row after the step."""
        first = int(plan.tokens[plan.query_start[row]])
        if first >= 0:
            return int(plan.kv_length[row])
        length = int(self.lengths[-1 - first] + plan.query_start[row + 1] - plan.query_start[row] - 1)
        assert length <= plan.kv_length[row], "a row is longer than the plan says"
        return length

    def _table(self, plan: Plan, row: int) -> npt.NDArray[np.int32]:
        """The row's pages [column, group]."""
        table: npt.NDArray[np.int32] = plan.page_table[row].reshape(-1, len(self.windows))
        return table

    def _seen(self, plan: Plan, row: int, length: int) -> list[int]:
        """What the last of so many tokens of the row sees, read from its pages."""
        groups = zip(self._by_group(plan, row, length), self.windows, strict=True)
        held = [token for tokens, window in groups for token in seen(tokens, (window,))]
        assert UNWRITTEN not in held, "a page is read before it is written"
        return held

    def _by_group(self, plan: Plan, row: int, length: int) -> list[list[int]]:
        """The first so many tokens of the row as the pages of each group of layers have them."""
        return [self.pages[pages].reshape(-1)[:length].tolist() for pages in self._table(plan, row).T]
