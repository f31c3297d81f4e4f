"""An executor whose output can be worked out by hand: the "cache" holds token ids, the next token is a hash of all before it.

It reads the sequence back from the pages it was told of, as attention would: a wrong page table, a page shared too early or
reused too soon, a token computed twice or never, a page copied or swapped wrongly, all change the output. `expected` is the
oracle. A row that sees the token `poison` has no valid logits. With groups of layers a token sees the window of each.
"""

import zlib
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxserve.executor.base import Capabilities
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.step.plan import LogprobRows, Plan, StepResult

VOCAB = 50
UNWRITTEN = -7
Windows = tuple[int | None, ...]
NO_ALTERNATIVES = (np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))


def next_token(tokens: list[int], vocab: int = VOCAB) -> int:
    return zlib.crc32(np.array(tokens, np.int32).tobytes()) % vocab


def score_of(tokens: list[int], target: int) -> int:
    """What a target after these tokens is scored with: as its rank."""
    return zlib.crc32(np.array([*tokens, target], np.int32).tobytes()) % 10**6


def seen(tokens: list[int], windows: Windows = (None,)) -> list[int]:
    """What the last of the tokens sees, group after group."""
    return [token for window in windows for token in (tokens if window is None else tokens[-window:])]


def expected(
    prompt: list[int], count: int, stops: frozenset[int] = frozenset(), vocab: int = VOCAB, windows: Windows = (None,)
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(seen(tokens, windows), vocab))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


@dataclass
class HashHandle:
    executor: "HashExecutor"
    value: StepResult

    def result(self) -> StepResult:
        assert self.executor.in_flight.popleft() == self.value.step, "results are collected in order"
        return self.value


class HashExecutor:
    def __init__(
        self,
        num_pages: int,
        page_size: int,
        max_num_seqs: int,
        max_model_len: int = 64,
        vocab: int = VOCAB,
        *,
        swap_places: int = 0,
        swap_page_seconds: float = 0.0,
        poison: int | None = None,
        windows: Windows = (None,),
    ) -> None:
        self.pages = np.full((num_pages, page_size), UNWRITTEN, np.int32)
        self.places: dict[int, npt.NDArray[np.int32]] = {}  # of the swap space, those that hold a page
        self.last = np.full(max_num_seqs, UNWRITTEN, np.int32)
        self.page_size = page_size
        self.max_model_len = max_model_len
        self.vocab = vocab
        self.swap_places = swap_places
        self.swap_page_seconds = swap_page_seconds
        self.poison = poison
        self.windows = windows
        self.in_flight: deque[int] = deque()
        self.plans: list[Plan] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_num_seqs=len(self.last),
            max_num_batched_tokens=10**6,
            max_model_len=self.max_model_len,
            num_pages=len(self.pages),
            page_size=self.page_size,
            swap_places=self.swap_places,
            swap_page_seconds=self.swap_page_seconds,
            windows=self.windows,
        )

    def counts(self) -> ExecutorCounts:
        return ExecutorCounts(compiled_programs=1, padding_tokens=sum(-plan.num_tokens % 8 for plan in self.plans))

    def move_pages(self, plan: Plan) -> None:
        for page, place in plan.swap_out:
            assert 0 <= place < self.swap_places, "the swap space has no such place"
            assert page > 0, "the null page is swapped"
            self.places[place] = self.pages[page].copy()
        for place, page in plan.swap_in:
            assert place in self.places, "a place is read before it is written"
            assert page > 0, "a swapped page goes to the null page"
            self.pages[page] = self.places.pop(place)
        sources, destinations = [source for source, _ in plan.copies], [destination for _, destination in plan.copies]
        assert len(set(destinations)) == len(destinations), "two pages are copied to the same one"
        assert all(page > 0 for page in (*sources, *destinations)), "the null page is copied"
        self.pages[destinations] = self.pages[sources]  # numpy reads all before it writes any

    def submit(self, plan: Plan) -> HashHandle:
        self.plans.append(plan)
        self.in_flight.append(plan.step)
        assert plan.num_rows == len(set(plan.ids)) == len(set(plan.slots.tolist()))
        self.move_pages(plan)
        tokens = [int(self.last[-1 - token]) if token < 0 else int(token) for token in plan.tokens]
        spans = [range(plan.query_start[row], plan.query_start[row + 1]) for row in range(plan.num_rows)]
        for row, span in enumerate(spans):  # all writes before all reads, as in a layer
            start = int(plan.kv_length[row]) - len(span)
            for offset, index in enumerate(span):
                page, place = divmod(start + offset, self.page_size)
                column = self._table(plan, row)[page]
                assert (column > 0).all(), "a token goes to the null page"
                self.pages[column, place] = tokens[index]
        out = np.full(plan.num_rows, UNWRITTEN, np.int32)
        for row in range(plan.num_rows):
            assert len(spans[row]) > 0
            content = self._seen(plan, row, int(plan.kv_length[row]))
            out[row] = -1 if self.poison in content else next_token(content, self.vocab)
            if plan.samples[row]:
                self.last[plan.slots[row]] = max(out[row], 0)
        scores = []
        for score in plan.scores:
            span, length = spans[score.row], int(plan.kv_length[score.row])
            assert 0 < len(score.targets) <= len(span) - score.offset, "a token is scored that the row does not compute"
            first = length - len(span) + score.offset + 1
            ranks = [score_of(self._seen(plan, score.row, first + index), target) for index, target in enumerate(score.targets)]
            scores.append(LogprobRows(np.zeros(len(ranks), np.float32), np.array(ranks, np.int32), *NO_ALTERNATIVES))
        return HashHandle(self, StepResult(plan.step, out, scores=tuple(scores)))

    def _table(self, plan: Plan, row: int) -> npt.NDArray[np.int32]:
        """The row's pages [column, group]."""
        return plan.page_table[row].reshape(-1, len(self.windows))

    def _seen(self, plan: Plan, row: int, length: int) -> list[int]:
        """What the last of so many tokens of the row sees, read from its pages."""
        held: list[int] = []
        for window, pages in zip(self.windows, self._table(plan, row).T, strict=True):
            held += seen(self.pages[pages].reshape(-1)[:length].tolist(), (window,))
        assert UNWRITTEN not in held, "a page is read before it is written"
        return held
