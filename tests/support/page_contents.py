"""What every page of the KV cache holds, worked out from plans alone: whose it is, and all tokens up to its last one.

Keys and values of a token depend on every token before it. An executor that keeps tokens only cannot tell a page of another
prefix or of another tenant from the right one if the tokens in it are the same; this can.
"""

from jaxserve.step.plan import MoveKind, Plan

Text = tuple[str, tuple[int, ...]]  # tenant, and its tokens up to the last one in the page


class PageContents:
    """Follows plans in the order in which they run.

    Args:
        page_size: tokens a page.
        windows: of each group of layers.
    """

    def __init__(self, page_size: int, windows: tuple[int | None, ...] = (None,)) -> None:
        self._size = page_size
        self._windows = windows
        self._pages: dict[int, Text] = {}
        self._swapped: dict[int, Text] = {}

    def run(self, plan: Plan, texts: list[Text]) -> None:
        """Move and write what the plan says, then assert that every row reads its own text; `texts` are the rows' full ones."""
        self._move(plan)
        for group in range(len(self._windows)):
            self._write(plan, group, texts)
        for group, window in enumerate(self._windows):  # all writes before all reads, as in a layer
            for row, text in enumerate(texts):
                start, length = self._span(plan, row)
                first = 0 if window is None else max(0, start - window + 1) // self._size
                assert not plan.page_table[row, group :: len(self._windows)][:first].any(), "a page is held that nobody sees"
                for index in range(first, -(-length // self._size)):
                    self._check(plan, (row, index, group), min((index + 1) * self._size, length), text)

    def _write(self, plan: Plan, group: int, texts: list[Text]) -> None:
        for row, text in enumerate(texts):
            start, end = self._span(plan, row)
            first = start // self._size
            if start % self._size and self._windows[group] != 1:  # it goes on in a page that nobody else writes
                self._check(plan, (row, first, group), start, text)
            for index in range(first, -(-end // self._size)):
                page = self._page(plan, (row, index, group))
                self._pages[page] = (text[0], text[1][: min((index + 1) * self._size, end)])

    @staticmethod
    def _span(plan: Plan, row: int) -> tuple[int, int]:
        """The first token that the row computes, and the end."""
        end = int(plan.kv_length[row])
        return end - int(plan.query_start[row + 1] - plan.query_start[row]), end

    def _page(self, plan: Plan, place: tuple[int, int, int]) -> int:
        row, index, group = place
        return int(plan.page_table[row, index * len(self._windows) + group])

    def _check(self, plan: Plan, place: tuple[int, int, int], end: int, text: Text) -> None:
        """The row's page holds its text up to token `end`."""
        tenant, held = self._held(self._pages, self._page(plan, place))
        assert tenant == text[0], f"{plan.ids[place[0]]} of {text[0]} reads a page of {tenant}"
        assert held[:end] == text[1][:end], f"{plan.ids[place[0]]} reads a page of another prefix"

    def _move(self, plan: Plan) -> None:
        for kind, source, destination in plan.moves:
            read = self._swapped if kind is MoveKind.FROM_TIER else self._pages
            written = self._swapped if kind is MoveKind.TO_TIER else self._pages
            written[destination] = self._held(read, source)

    @staticmethod
    def _held(texts: dict[int, Text], index: int) -> Text:
        assert index in texts, f"page or swap slot {index} was never written"
        return texts[index]
