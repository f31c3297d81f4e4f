"""Random operations on the KV cache against plain dicts: what each page holds, and which page has which tokens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxserve.cache.kv_cache import KVCache

ROOTS = (b"tenant-a", b"tenant-b")
PREFIXES = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=14)  # few tokens: prefixes coincide often


class Live:
    """A sequence of the model: its root, tokens and how many of them are computed."""

    def __init__(self, root, tokens, pages, computed):
        self.root, self.tokens, self.pages, self.computed = root, tokens, pages, computed


class CacheMachine(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(2, 12), size=st.sampled_from([1, 2, 4]), prefix_caching=st.booleans())
    def start(self, num_pages, size, prefix_caching):
        self.size = size
        self.prefix_caching = prefix_caching
        self.cache = KVCache(num_pages, size, prefix_caching=prefix_caching)
        self.content = {}  # page -> (root, all tokens up to its end), as the last step wrote it
        self.known = {}  # (root, all tokens up to its end) -> the page that was the first to hold them
        self.live = []

    def write(self, sequence, start):
        """What the step that computes tokens from `start` on leaves in the sequence's pages."""
        for index in range(start // self.size, self.cache.pages_for(sequence.computed)):
            end = min((index + 1) * self.size, sequence.computed)
            page, text = sequence.pages.pages[index], (sequence.root, tuple(sequence.tokens[:end]))
            self.content[page] = text
            if self.prefix_caching and end % self.size == 0:
                self.known.setdefault(text, page)

    def wanted(self, root, tokens):
        """The pages that find should give: whole ones, and never all tokens."""
        pages = []
        for end in range(self.size, len(tokens), self.size):
            page = self.known.get((root, tuple(tokens[:end])))
            if page is None:
                break
            pages.append(page)
        return tuple(pages)

    def check_match(self, root, tokens, match):
        assert match.pages == self.wanted(root, tokens)
        assert match.num_tokens == len(match.pages) * self.size < len(tokens)
        for index, page in enumerate(match.pages):
            assert self.content[page] == (root, tuple(tokens[: (index + 1) * self.size]))

    @rule(root=st.sampled_from(ROOTS), tokens=PREFIXES)
    def add(self, root, tokens):
        free = self.cache.num_free
        match = self.cache.find(root, tokens, [])
        assert self.cache.num_free == free, "find changes nothing"
        self.check_match(root, tokens, match)
        used = {page for sequence in self.live for page in sequence.pages.pages}
        cost = self.cache.pages_for(len(tokens)) - sum(page in used for page in match.pages)
        assert self.cache.fits(match, len(tokens), spare=0) == (cost <= free)
        assert self.cache.fits(match, len(tokens), spare=2) == (cost + 2 <= free)
        if cost > free:
            return
        pages = self.cache.begin(match, len(tokens))
        assert tuple(pages.pages) == match.pages
        self.live.append(Live(root, list(tokens), pages, match.num_tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.lists(st.sampled_from([1, 2]), max_size=3))
    def compute(self, data, extra):
        sequence = data.draw(st.sampled_from(self.live))
        sequence.tokens += extra
        if sequence.computed == len(sequence.tokens):
            return
        target = data.draw(st.integers(sequence.computed + 1, len(sequence.tokens)))
        before, free = list(sequence.pages.pages), self.cache.num_free
        missing = self.cache.pages_for(target) - len(before)
        grown = self.cache.grow(sequence.pages, target)
        assert grown == (missing <= free)
        assert sequence.pages.pages[: len(before)] == before
        if not grown:
            assert sequence.pages.pages == before
            return
        new = set(sequence.pages.pages[len(before) :])
        self.known = {text: page for text, page in self.known.items() if page not in new}
        others = {page for other in self.live if other is not sequence for page in other.pages.pages}
        assert not others & new, "a new page is nobody else's"
        written = sequence.pages.pages[sequence.computed // self.size :]
        assert not others & set(written), "only full pages are shared: nobody else reads the pages written now"
        start, sequence.computed = sequence.computed, target
        self.write(sequence, start)
        self.cache.commit(sequence.pages, sequence.tokens, sequence.computed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        sequence = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.cache.release(sequence.pages)
        assert sequence.pages.pages == []

    @rule(root=st.sampled_from(ROOTS), tokens=PREFIXES)
    def find(self, root, tokens):
        self.check_match(root, tokens, self.cache.find(root, tokens, []))

    @invariant()
    def consistent(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check(sequence.pages for sequence in self.live)
        used = {page for sequence in self.live for page in sequence.pages.pages}
        assert self.cache.num_free == self.cache.num_usable - len(used)
        holders = [set(sequence.pages.pages) for sequence in self.live]
        for number, sequence in enumerate(self.live):
            for other, pages in zip(self.live[:number], holders[:number], strict=True):
                assert sequence.root == other.root or not pages & holders[number], "two tenants share a page"
            for index in range(sequence.computed // self.size):
                page = sequence.pages.pages[index]
                assert self.content[page] == (sequence.root, tuple(sequence.tokens[: (index + 1) * self.size]))


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
