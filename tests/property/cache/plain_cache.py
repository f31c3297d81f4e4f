"""What the KV cache should do, written down plainly: pages are named by the tokens in them, and every search is a scan.

The text of a page is its salt, all tokens up to its end, and its group of layers.
"""

from collections import Counter
from collections.abc import Hashable

NUM_LEVELS = 16


class PlainOrder:
    """Free cached pages: page -> [level, order of arrival there, when it goes down]."""

    def __init__(self, lifetime):
        self.lifetime = lifetime
        self.arrivals = 0
        self.pages = {}

    def put(self, page, level, now):
        self.arrivals += 1
        self.pages[page] = [level, self.arrivals, now + self.lifetime]

    def add(self, page, worth, now):
        level = 0
        while worth >= 2**level and level < NUM_LEVELS - 1:
            level += 1
        self.put(page, level, now)

    def first(self, now):
        for level in range(1, NUM_LEVELS):
            for page in sorted((page for page in self.pages if self.pages[page][0] == level), key=lambda page: self.pages[page]):
                if self.pages[page][2] > now:
                    break
                self.put(page, level - 1, now)
        return min(self.pages, key=lambda page: self.pages[page])


class PlainCache:
    """Follows a KV cache: told which pages it handed out, it says whether it may have."""

    def __init__(self, num_pages, quotas):
        self.lifetime = num_pages - 1
        self.quotas = quotas
        self.blank = set(range(1, num_pages))
        self.owner = {}
        self.references: Counter[int] = Counter()
        self.pages_of = {}  # text -> findable pages with it, oldest first
        self.text_of = {}
        self.worth: Counter[Hashable] = Counter()  # by text
        self.order = PlainOrder(self.lifetime)
        self.order_of = {tenant: PlainOrder(self.lifetime) for tenant in quotas}
        self.over = []  # tenants beyond their quota that have a page to evict, longest so first
        self.now = 0
        self.evicted: Counter[str] = Counter()

    @property
    def num_free(self):
        return len(self.blank) + len(self.order.pages)

    def owned(self, tenant):
        return [page for page, owner in self.owner.items() if owner == tenant]

    def in_use(self, tenant):
        return sum(self.references[page] > 0 for page in self.owned(tenant))

    def match(self, columns, firsts):
        """Pages of the longest prefix of the columns, each the texts of a page a group, of which all is there that is seen.

        `firsts(count)` are the first columns of `count` that are seen, one a group; 0 stands for pages that are not.
        """
        for count in range(len(columns), 0, -1):
            seen = [
                text
                for index, texts in enumerate(columns[:count])
                for text, first in zip(texts, firsts(count), strict=True)
                if index >= first
            ]
            if all(text in self.pages_of for text in seen):
                return [
                    self.pages_of[text][0] if index >= first else 0
                    for index, texts in enumerate(columns[:count])
                    for text, first in zip(texts, firsts(count), strict=True)
                ]
        return []

    def hit(self, pages):
        for page in pages:
            self.worth[self.text_of[page]] += len(pages)
        self.share(pages)

    def share(self, pages):
        for page in pages:
            if self.references[page] == 0:
                self.unqueue(page)
            self.references[page] += 1

    def allocate(self, pages, tenant):
        """The cache handed out these pages, in this order: each must have been the one to go."""
        self.now += len(pages)
        for page in pages:
            if self.blank:
                assert page in self.blank, "a page that can be found was handed out before a blank one"
                self.blank.remove(page)
            else:
                assert page == self.victim(tenant)
                self.unqueue(page)
                self.evicted[self.owner[page]] += 1
                self.unname(page)
            self.owner[page] = tenant
            self.references[page] = 1
            self.note_over()

    def victim(self, tenant):
        owned = self.owned(tenant)
        quota = self.quotas.get(tenant)
        if quota is not None and len(owned) >= quota and any(page in self.order.pages for page in owned):
            return self.order_of[tenant].first(self.now)
        if self.over:
            return self.order_of[self.over[0]].first(self.now)
        return self.order.first(self.now)

    def release(self, pages):
        for page in pages:
            self.references[page] -= 1
            if self.references[page] > 0:
                continue
            text = self.text_of.get(page)
            if text is None or len(self.pages_of[text]) > 1:
                self.discard(page)
                continue
            for order in (self.order, self.order_of.get(self.owner[page])):
                if order is not None:
                    order.add(page, self.worth[text], self.now)
            self.note_over()

    def insert(self, page, text):
        if page in self.text_of:
            return
        pages = self.pages_of.setdefault(text, [])
        pages.append(page)
        self.text_of[page] = text
        if self.references[pages[0]] == 0:
            self.unqueue(pages[0])
            self.discard(pages[0])

    def give_to(self, pages, tenant):
        for page in pages:
            self.owner[page] = tenant
            self.note_over()

    def flush(self):
        for page in list(self.text_of):
            self.unname(page)
        for page in list(self.order.pages):
            self.unqueue(page)
            self.discard(page)

    def discard(self, page):
        if page in self.text_of:
            self.unname(page)
        del self.owner[page]
        self.blank.add(page)
        self.note_over()

    def unname(self, page):
        text = self.text_of.pop(page)
        self.pages_of[text].remove(page)
        if not self.pages_of[text]:
            del self.pages_of[text]
            del self.worth[text]

    def unqueue(self, page):
        del self.order.pages[page]
        if self.owner[page] in self.order_of:
            del self.order_of[self.owner[page]].pages[page]
        self.note_over()

    def note_over(self):
        over = [
            tenant for tenant, quota in self.quotas.items() if len(self.owned(tenant)) > quota and self.order_of[tenant].pages
        ]
        self.over = [tenant for tenant in self.over if tenant in over] + [name for name in over if name not in self.over]
