"""What a sequence holds of the KV cache, and what it could begin with."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxserve.cache.tenants import SHARED_TENANT


@dataclass(slots=True)
class SequenceState:
    """What is known of a sequence's recurrent state.

    Attributes:
        restored: the place of a snapshot that it begins with; 0 once it has, or for none.
        refused: drafts of its latest row that were not right, if nothing was planned since.
        branch: tokens whose pages were found when it began, where no snapshot was, nor one a little shorter; 0 if there was one.
        pending: snapshots that cannot be found yet: columns before them, and where they are.
        origin: what the snapshot is found by that its prompt goes on from by a page or more; None once it left one of its own.
        latest: what its latest snapshot is found by, but for one at `branch`, which is for others.
    """

    restored: int = 0
    refused: int = 0
    branch: int = 0
    pending: list[tuple[int, int]] = field(default_factory=list)
    origin: bytes | None = None
    latest: bytes | None = None


@dataclass(slots=True)
class SequencePages:
    """The pages of one sequence in order, and the hashes of those that are full and committed.

    Attributes:
        root: hash of the namespace of its prefix.
        pages: its pages, column after column, those of a column in the order of the groups; the null page for one given back.
        hashes: of its leading columns.
        tenant: whom pages that it allocates are charged to.
        epoch: flushes of the cache before it began.
        num_shared: leading columns that were shared by a fork or a match; they are full.
        start: computed tokens when its windows slid for the last time.
        slides_at: computed tokens from which on there is a page to give back; 0 where there is no window.
        state: of a model that has recurrent ones.
    """

    root: bytes
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    tenant: str = SHARED_TENANT
    epoch: int = 0
    num_shared: int = 0
    start: int = 0
    slides_at: int = 0
    state: SequenceState = field(default_factory=SequenceState)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading tokens that are in the cache: whole columns and their hashes. Valid until the cache is used otherwise.

    Pages are as in SequencePages, the null page for those that the next token does not see. `branch` is as in SequenceState.
    """

    root: bytes
    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()
    num_tokens: int = 0
    branch: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence that starts with another's tokens.

    Attributes:
        pages: the new sequence's.
        copies: (source, destination) of pages to copy before any step writes into either, one a group; none if all are shared.
    """

    pages: SequencePages
    copies: tuple[tuple[int, int], ...]
