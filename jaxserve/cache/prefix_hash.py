"""The name of a page's content: a chained hash, keyed by the page before, over everything its keys and values depend on.

Two pages hold the same keys and values only if the model, the cache's dtype, the rotary parameters, the adapter and *all* tokens
up to and including the page are the same; tenants with different salts never share. 128-bit BLAKE2b: clients
cannot find two contents with one name.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Everything but the tokens that cached keys and values depend on, and who may see them.

    Attributes:
        model: fingerprint of weights and configuration.
        kv_dtype: what the cache is held in: its dtype, and that of its scales if it has some.
        rope: description of the rotary embedding.
        adapter: name and version of the adapter, empty for none.
        salt: the tenant's salt, empty for what everyone may share.
        held: what the weights are held in and rounded to on the device, which the fingerprint of a checkpoint cannot tell.
        weights: version of the weights, empty for those that the model came with.
    """

    model: str
    kv_dtype: str
    rope: str
    adapter: str = ""
    salt: str = ""
    held: str = ""
    weights: str = ""

    def root(self) -> bytes:
        """The hash that a sequence's first page is chained to."""
        fields = (self.model, self.kv_dtype, self.rope, self.adapter, self.salt, self.held, self.weights)
        state = hashlib.blake2b(digest_size=DIGEST_SIZE)
        for field in fields:
            encoded = field.encode()
            state.update(len(encoded).to_bytes(8, "little") + encoded)  # length-prefixed: "ab","c" is not "a","bc"
        return state.digest()


def adapter_root(root: bytes, adapter: str) -> bytes:
    """The root of what a sequence with an adapter computes, given the one that it has without; the same for none ("")."""
    return hashlib.blake2b(adapter.encode(), key=root, digest_size=DIGEST_SIZE).digest() if adapter else root


def page_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full page given that of the page before it (or the namespace's root)."""
    return hashlib.blake2b(array("i", tokens).tobytes(), key=parent, digest_size=DIGEST_SIZE).digest()
