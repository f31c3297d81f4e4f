"""Random operations on the KV cache against a plain one: what each page holds, who may find it, and which page goes first."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.errors import InvalidRequestError
from tests.property.cache.plain_cache import PlainCache

ROOTS = {salt: CacheNamespace("m", "float32", "r", salt=salt).root() for salt in ("ours", "theirs")}
SALTS = st.sampled_from(list(ROOTS))
TENANTS = ("", "ours", "theirs")
TEXTS = ([1] * 14, [1] * 4 + [2] * 10, [1] * 9 + [2] * 5, [2] * 4 + [1] * 10)  # the last has the second's pages, elsewhere
PREFIXES = st.builds(lambda text, length: text[:length], st.sampled_from(TEXTS), st.integers(1, 14))  # few: they coincide often
WINDOWS = ((3,), (1,), (6,), (None, 4), (5, None, 2), (None, None))
QUOTAS = st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 6), max_size=2)


class Live:
    """A sequence of the model: its pages, tokens, how many of them are computed, and whether it began after the last flush.

    `slid` is how many were when its windows slid.
    """

    def __init__(self, salt, tenant, tokens, pages, computed, findable):
        self.salt, self.tenant, self.tokens, self.pages, self.computed = salt, tenant, tokens, pages, computed
        self.findable, self.slid = findable, computed

    @property
    def held(self):
        return [page for page in self.pages.pages if page]


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.sampled_from([7, 10, 14, 4, 2, 30]),
        size=st.sampled_from([2, 1, 4]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        quotas=st.one_of(st.just({}), QUOTAS),
        mixed=st.booleans(),
        max_pinned=st.sampled_from([None, 1, 4]),
        windows=st.one_of(st.just((None,)), st.sampled_from(WINDOWS)),
        chunk=st.sampled_from([1, 3, 14]),
    )
    def start(self, num_pages, size, prefix_caching, quotas, mixed, max_pinned, windows, chunk):
        self.size = size
        self.prefix_caching = prefix_caching
        self.mixed = mixed  # whether tenants share prefixes
        self.windows, self.chunk = windows, chunk
        self.unbroken = not (mixed and quotas) and not any(windows)  # what can be found can be found from the start of its prompt
        self.max_pinned = (num_pages - 1) // 4 if max_pinned is None else max_pinned
        self.cache = KVCache(
            num_pages,
            size,
            prefix_caching=prefix_caching,
            quota=quotas.get,
            max_pinned=max_pinned,
            windows=windows,
            max_chunk=chunk,
        )
        self.plain = PlainCache(num_pages, quotas)
        self.content = {}  # page -> (salt, all tokens up to its end, group), as the last step wrote it
        self.live = []
        self.pinned = []
        self.queried = dict.fromkeys(TENANTS, 0)
        self.hits = dict.fromkeys(TENANTS, 0)

    def texts(self, salt, tokens, length):
        """What the full columns of the first `length` tokens hold, page by page."""
        ends = range(self.size, length + 1, self.size)
        return [[(salt, tuple(tokens[:end]), group) for group in range(len(self.windows))] for end in ends]

    def firsts(self, position):
        """The first columns that the token at this position sees, one a group."""
        return [0 if window is None else max(0, position - window + 1) // self.size for window in self.windows]

    def match(self, columns):
        return self.plain.match(columns, lambda count: self.firsts(count * self.size))

    def find(self, salt, tokens):
        """What the cache finds: whole pages that hold these tokens, and never all tokens."""
        free = self.cache.num_free
        match = self.cache.find(ROOTS[salt], tokens, [])
        assert self.cache.num_free == free, "find changes nothing"
        columns = self.texts(salt, tokens, len(tokens) - 1)
        assert list(match.pages) == (self.match(columns) if self.prefix_caching else [])
        assert match.num_tokens * len(self.windows) == len(match.pages) * self.size
        assert match.num_tokens < len(tokens)
        texts = [text for texts in columns for text in texts]
        assert all(self.content[page] == text for page, text in zip(match.pages, texts, strict=False) if page)
        return match

    def cost(self, match, length):
        """Free pages that a sequence takes that begins with the match: where a window slides, no more than it ever holds."""
        new, total = -(-length // self.size) - match.num_tokens // self.size, 0
        for group, window in enumerate(self.windows):
            pages = match.pages[group :: len(self.windows)]
            needed = new + sum(page > 0 and self.plain.references[page] == 0 for page in pages)
            if window is not None:
                starts = range(0, length, self.size)  # wherever in a page a step begins
                most = max(
                    len(
                        {
                            place // self.size
                            for place in range(max(0, start + at - window + 1), min(length, start + at + self.chunk))
                        }
                    )
                    for start in starts
                    for at in range(self.size)
                )
                needed = min(needed, most)
            total += needed
        return total

    @rule(salt=SALTS, tokens=PREFIXES, tenant=st.sampled_from(TENANTS), use=st.integers(0, 3), whole=st.integers(0, 2))
    def add(self, salt, tokens, tenant, use, whole):
        match = PrefixMatch(ROOTS[salt]) if use == 1 else self.find(salt, tokens)  # prompts to score use nothing
        tenant = tenant if self.mixed else salt
        free = self.plain.num_free
        cost = self.cost(match, len(tokens))
        assert cost <= self.cache.pages_taken(match, len(tokens)) <= cost + sum(map(bool, self.windows))
        if not any(self.windows):
            assert self.cache.fits(match, len(tokens), spare=0) == (cost <= free)
            assert self.cache.fits(match, len(tokens), spare=2) == (cost + 2 <= free)
        if not self.cache.fits(match, len(tokens), spare=0):
            if self.live:
                self.drop(self.live.pop(0))
            return
        pages = self.cache.begin(match, len(tokens), tenant)
        assert tuple(pages.pages) == match.pages
        self.plain.hit([page for page in match.pages if page])
        self.queried[tenant] += len(tokens)
        self.hits[tenant] += match.num_tokens
        self.live.append(Live(salt, tenant, list(tokens), pages, match.num_tokens, True))
        if whole != 1:
            assert self.run(self.live[-1], len(tokens)), "its pages were promised"
        if whole == 2:
            self.drop(self.live.pop())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.lists(st.sampled_from([1, 2]), max_size=3))
    def compute(self, data, extra):
        sequence = data.draw(st.sampled_from(self.live))
        sequence.tokens += extra
        if sequence.computed < len(sequence.tokens):
            self.run(sequence, data.draw(st.integers(sequence.computed + 1, len(sequence.tokens))))

    def run(self, sequence, target):
        """Steps compute the sequence's tokens up to `target`, as far as there are pages; whether there were."""
        while sequence.computed < target:
            self.slide(sequence)
            if not self.step(sequence, min(sequence.computed + self.chunk, target)):
                return False
        return True

    def slide(self, sequence):
        """What the tokens to come do not see is given back, the last first."""
        before, groups = list(sequence.pages.pages), len(self.windows)
        places = [
            column * groups + group
            for group, (first, end) in enumerate(zip(self.firsts(sequence.slid), self.firsts(sequence.computed), strict=True))
            for column in range(first, end)
        ]
        due = any(self.windows) and sequence.computed >= sequence.pages.slides_at
        assert due == bool(places)
        assert self.cache.slide(sequence.pages, sequence.computed) == places
        sequence.slid = sequence.computed
        self.plain.release([before[place] for place in reversed(places)])
        assert all(page == (0 if place in places else before[place]) for place, page in enumerate(sequence.pages.pages))

    def step(self, sequence, target):
        """A step computes the sequence's tokens up to `target`, if there are pages."""
        before, free, groups = list(sequence.pages.pages), self.cache.num_free, len(self.windows)
        missing = self.cache.pages_for(target) - len(before)
        assert self.cache.can_grow(sequence.pages, target, spare=1) == (missing + 1 <= free)
        grown = self.cache.grow(sequence.pages, target)
        assert grown == (missing <= free)
        assert sequence.pages.pages[: len(before)] == before
        if not grown:
            assert sequence.pages.pages == before
            return False
        assert self.cache.num_held(sequence.pages) == len(sequence.held) <= self.cache.most_pages(target)
        self.plain.allocate(sequence.pages.pages[len(before) :], sequence.tenant)
        written = range(sequence.computed // self.size, -(-target // self.size))
        sequence.computed = target
        for index in written:
            end = min((index + 1) * self.size, target)
            for group, page in enumerate(sequence.pages.pages[index * groups : (index + 1) * groups]):
                assert self.plain.references[page] == 1, "only full pages are shared: nobody else reads a page that is written"
                self.content[page] = (sequence.salt, tuple(sequence.tokens[:end]), group)
        self.cache.commit(sequence.pages, sequence.tokens, target)
        if self.prefix_caching and sequence.findable:
            columns = self.texts(sequence.salt, sequence.tokens, target)
            for page, text in zip(sequence.pages.pages, [text for texts in columns for text in texts], strict=False):
                if page:
                    self.plain.insert(page, text)
        return True

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.live))
        length = data.draw(st.integers(0, parent.computed))
        free, groups = self.cache.num_free, len(self.windows)
        firsts = self.firsts(length)
        there = all(slid <= first for slid, first in zip(self.firsts(parent.slid), firsts, strict=True))
        assert self.cache.can_fork(parent.pages, length) == there
        if not there:
            with pytest.raises(
                ValueError, match=f"fork at token {length} of a sequence whose windows slid to token {parent.slid}"
            ):
                self.cache.fork(parent.pages, length)
            return
        fork = self.cache.fork(parent.pages, length)
        full, rest = divmod(length, self.size)
        assert (fork is None) == (rest > 0 and free < groups)
        if fork is None:
            return
        shared = [
            0 if place // groups < firsts[place % groups] else page
            for place, page in enumerate(parent.pages.pages[: full * groups])
        ]
        self.plain.share([page for page in shared if page])
        assert fork.pages.pages[: full * groups] == shared
        assert len(fork.copies) == (groups if rest else 0)
        if rest:
            sources, destinations = zip(*fork.copies, strict=True)
            self.plain.allocate(destinations, parent.tenant)
            assert list(sources) == parent.pages.pages[full * groups : (full + 1) * groups]
            assert list(destinations) == fork.pages.pages[full * groups :]
            for source, destination in fork.copies:
                self.content[destination] = self.content[source]
        self.live.append(Live(parent.salt, parent.tenant, parent.tokens[:length], fork.pages, length, parent.findable))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        self.drop(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    def drop(self, sequence):
        """A sequence ends."""
        exclusive, free = self.cache.exclusive_pages(sequence.pages), self.cache.num_free
        self.plain.release(sequence.held[::-1])
        self.cache.release(sequence.pages)
        assert sequence.pages.pages == []
        assert self.cache.num_free == free + exclusive

    @precondition(lambda self: self.plain.text_of)
    @rule(salt=SALTS, tokens=PREFIXES, tenant=st.sampled_from(TENANTS))
    def pin(self, salt, tokens, tenant):
        root = ROOTS[salt]
        tenant = tenant if self.mixed else salt
        pages = [page for page in self.match(self.texts(salt, tokens, len(tokens))) if page]
        new = [page for page in pages if page not in self.pinned]
        if len(self.pinned) + len(new) > self.max_pinned:
            with pytest.raises(InvalidRequestError, match=f"cannot pin {len(new)} more pages"):
                self.cache.pin(root, tokens, tenant)
            return
        assert self.cache.pin(root, tokens, tenant) == len(pages)
        self.plain.share(new)
        self.plain.give_to(new, tenant)
        self.pinned += new

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self):
        self.cache.unpin_all()
        self.plain.release(self.pinned[::-1])
        self.pinned = []

    @precondition(lambda self: self.plain.text_of)
    @rule(sure=st.integers(0, 9))
    def flush(self, sure):
        if sure != 5:  # seldom, or nothing is ever found
            return
        self.cache.flush()
        self.plain.flush()
        self.plain.release(self.pinned[::-1])
        self.pinned = []
        for sequence in self.live:
            sequence.findable = False

    @rule(salt=SALTS, tokens=PREFIXES)
    def look(self, salt, tokens):
        self.find(salt, tokens)

    @invariant()
    def consistent(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check(sequence.pages for sequence in self.live)
        assert self.cache.num_free == self.plain.num_free
        assert self.cache.num_pinned == len(self.pinned)
        counters = self.cache.counters()
        for tenant in TENANTS:
            pinned = len(set(self.pinned).intersection(self.plain.owned(tenant)))
            assert self.cache.tenant_pages(tenant) == self.plain.in_use(tenant) - pinned
            if tenant in counters:
                assert (counters[tenant].queried, counters[tenant].hits) == (self.queried[tenant], self.hits[tenant])
                assert counters[tenant].evicted == self.plain.evicted[tenant]
        for sequence in self.live:
            columns = self.texts(sequence.salt, sequence.tokens, sequence.computed)
            for page, text in zip(sequence.pages.pages, [text for texts in columns for text in texts], strict=False):
                assert page == 0 or self.content[page] == text
        everything = [sequence.pages for sequence in self.live]
        shared = {page for pages in everything for page in pages.pages[: pages.num_shared * len(self.windows)] if page}
        own = [page for one in self.live for page in one.pages.pages[one.pages.num_shared * len(self.windows) :] if page]
        assert self.cache.num_different(everything) == len(shared) + len(own)
        for salt, tokens, group in self.plain.pages_of:
            parent = (salt, tokens[: -self.size], group)
            assert not (self.unbroken and parent[1]) or parent in self.plain.pages_of, "a page outlives the one before it"


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
