"""What every page of the KV cache holds, worked out from plans alone: whose it is, and all tokens up to its last one.

Keys and values of a token depend on every token before it. An executor that keeps tokens only cannot tell a page of another
prefix or of another tenant from the right one if the tokens in it are the same; this can.
"""

from jaxserve.scheduler.plan import Plan

Text = tuple[str, tuple[int, ...]]  # tenant, and its tokens up to the last one in the page


class PageContents:
    """Follows plans in the order in which they run.

    Args:
        page_size: tokens a page.
    """

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._pages: dict[int, Text] = {}
        self._places: dict[int, Text] = {}

    def run(self, plan: Plan, texts: list[Text]) -> None:
        """Move and write what the plan says, then assert that every row reads its own text; `texts` are the rows' full ones."""
        self._move(plan)
        for row, text in enumerate(texts):
            end = int(plan.kv_length[row])
            start = end - int(plan.query_start[row + 1] - plan.query_start[row])
            first = start // self._size
            if start % self._size:  # it goes on in a page that nobody else writes
                self._check(plan, row, first, start, text)
            for index in range(first, -(-end // self._size)):
                self._pages[int(plan.page_table[row, index])] = (text[0], text[1][: min((index + 1) * self._size, end)])
        for row, text in enumerate(texts):  # all writes before all reads, as in a layer
            length = int(plan.kv_length[row])
            for index in range(-(-length // self._size)):
                self._check(plan, row, index, min((index + 1) * self._size, length), text)

    def _check(self, plan: Plan, row: int, index: int, end: int, text: Text) -> None:
        """The row's page holds its text up to token `end`."""
        tenant, held = self._held(self._pages, int(plan.page_table[row, index]))
        assert tenant == text[0], f"{plan.ids[row]} of {text[0]} reads a page of {tenant}"
        assert held[:end] == text[1][:end], f"{plan.ids[row]} reads a page of another prefix"

    def _move(self, plan: Plan) -> None:
        for page, place in plan.swap_out:
            self._places[place] = self._held(self._pages, page)
        for place, page in plan.swap_in:
            self._pages[page] = self._held(self._places, place)
        copied = [(destination, self._held(self._pages, source)) for source, destination in plan.copies]
        self._pages.update(copied)

    @staticmethod
    def _held(texts: dict[int, Text], index: int) -> Text:
        assert index in texts, f"page or place {index} was never written"
        return texts[index]
