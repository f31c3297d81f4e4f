"""Random operations on the KV cache: who applies its events in order knows what can be found, whenever they began to follow."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from jaxserve.cache.events import Cleared, Removed, Stored, split_name
from jaxserve.cache.prefix_hash import page_hash
from tests.property.cache.test_kv_cache_model import ROOTS, CacheMachine


class Follower:
    """What is known of the cache by its events alone: (hash of a column, group)."""

    def __init__(self, cache):
        self.cache, self.told, self.size = cache, 0, cache.page_size
        self.known = set(map(split_name, cache.prefixes.follow(self.take)))

    def take(self, events):
        assert events, "nothing is not told"
        self.told += 1
        for event in events:
            match event:
                case Stored():
                    stored = {(digest, event.group) for digest in event.hashes}
                    assert not stored & self.known, "what was known is not stored again"
                    self.check(event)
                    self.known |= stored
                case Removed():
                    removed = {(digest, event.group) for digest in event.hashes}
                    assert removed <= self.known, "what was removed was known"
                    self.known -= removed
                case Cleared():
                    self.known.clear()

    def check(self, event):
        """Hashes are those of the tokens."""
        assert event.root in ROOTS.values()
        digest = event.parent or event.root
        assert len(event.tokens) == len(event.hashes) * self.size
        for place, expected in enumerate(event.hashes):
            digest = page_hash(digest, event.tokens[place * self.size : (place + 1) * self.size])
            assert digest == expected


class FollowedMachine(CacheMachine):
    followers: tuple[Follower, ...] = ()

    @precondition(lambda self: len(self.followers) < 2)
    @rule()
    def follow(self):
        self.followers = (*self.followers, Follower(self.cache))

    @precondition(lambda self: self.followers)
    @rule(sure=st.integers(0, 9))
    def unfollow(self, sure):
        if sure == 7:
            first, *others = self.followers
            self.cache.prefixes.unfollow(first.take)
            self.followers = tuple(others)
            told = first.told
            self.cache.prefixes.tell()
            assert first.told == told

    @rule()
    def tell(self):
        self.cache.prefixes.tell()
        expected = {(self.hash_of(salt, tokens), group) for salt, tokens, group in self.plain.pages_of}
        for follower in self.followers:
            assert follower.known == expected
            told = follower.told
            self.cache.prefixes.tell()
            assert follower.told == told

    def hash_of(self, salt, tokens):
        digest = ROOTS[salt]
        for place in range(0, len(tokens), self.size):
            digest = page_hash(digest, tokens[place : place + self.size])
        return digest

    @invariant()
    def unheard(self):
        if hasattr(self, "cache"):
            assert (self.cache.prefixes.events is None) == (not self.followers), "nothing is gathered for nobody"


TestFollowed = FollowedMachine.TestCase
TestFollowed.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
