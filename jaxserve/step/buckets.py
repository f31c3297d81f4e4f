"""The few step shapes that are compiled: every plan is padded up to one of them.

Decode steps have as many tokens as rows: powers of two, and on GPUs more of the large ones, where padding costs more. Steps
with prompt chunks have more tokens than rows; rows cost little there (a row is one line of the logits), so their row count takes
few values. Where products skip padding, as native kernels for CPUs do, there are fewer sizes: each is a program to compile.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property

CHUNK_ROWS = 32  # row count of steps with prompt chunks, unless more rows run

FREE_ROWS = 8  # where padding is nearly free: rows of the second smallest decode step,
FREE_TOKENS = 128  # and tokens of the smallest step with prompt chunks
FREE_STEPS = 4  # and sizes in a doubling by which steps are reckoned

FEW_TOKENS = 4  # of a row, up to which a step is one of decodes

GPU_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # rows of decode steps on GPUs; doubling from there


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A step's padded shape: T tokens in R rows, of which each may have so many drafts, and an adapter if it is `adapted`."""

    tokens: int
    rows: int
    drafts: int = 0
    adapted: bool = False


@dataclass(frozen=True)
class BucketGrid:
    """All buckets, cheapest first.

    Attributes:
        buckets: the shapes.
        free_padding: whether a step costs about what its tokens cost, not what its bucket could hold.
        decodes_apart: whether decode steps' kernels are for rows of few tokens: a row of more needs a bucket of more tokens than
            rows.
    """

    buckets: tuple[Bucket, ...]
    free_padding: bool = False
    decodes_apart: bool = False

    @cached_property
    def _wide(self) -> tuple[Bucket, ...]:
        """Those for drafts."""
        return tuple(bucket for bucket in self.buckets if bucket.drafts)

    @cached_property
    def _plain_first(self) -> tuple[Bucket, ...]:
        return (*(bucket for bucket in self.buckets if not bucket.drafts), *self._wide)

    @classmethod
    def of_one(cls, *, max_rows: int, max_tokens: int) -> BucketGrid:
        """A grid of one shape, which holds every plan, of more tokens than rows."""
        return cls((Bucket(max_tokens, max_rows),))

    @classmethod
    def for_platform(
        cls,
        platform: str,
        *,
        max_rows: int,
        max_tokens: int,
        free_padding: bool = False,
        fewest: bool = False,
        max_drafts: int = 0,
    ) -> BucketGrid:
        """The grid of an engine on devices of a platform ("cpu" or another)."""
        on_cpu = platform == "cpu"
        # XLA's CPU dots leave the fast path at one row.
        min_rows = 2 if on_cpu else 1
        grid = cls.make(max_rows=max_rows, max_tokens=max_tokens, min_rows=min_rows, fine=not on_cpu, free_padding=free_padding)
        grid = grid.fewest() if fewest else grid
        return grid.with_drafts(max_drafts) if max_drafts else grid

    @classmethod
    def make(cls, *, max_rows: int, max_tokens: int, min_rows: int, fine: bool = False, free_padding: bool = False) -> BucketGrid:
        """Buckets for up to `max_rows` rows and `max_tokens` tokens a step.

        Args:
            max_rows: rows of a plan.
            max_tokens: tokens of a plan.
            min_rows: no bucket has fewer.
            fine: decode steps of GPU_ROWS rows, not of powers of two, apart from others.
            free_padding: see BucketGrid.
        """
        max_rows, max_tokens = max(max_rows, min_rows), max(max_tokens, min_rows)
        counts = [*GPU_ROWS, *_doubling(2 * GPU_ROWS[-1], max_rows)] if fine else _doubling(min_rows, max_rows)
        if free_padding:
            counts = [count for count in counts if count == min_rows or count >= FREE_ROWS]
        rows = [*(count for count in counts if min_rows <= count < max_rows), max_rows]
        decode = {Bucket(count, count) for count in rows}
        mixed_rows = {max_rows} if free_padding else {min(CHUNK_ROWS, max_rows), max_rows}
        tokens = [*_doubling(FREE_TOKENS if free_padding else 2 * CHUNK_ROWS, max_tokens), max_tokens]
        # Where a row has several tokens there are fewer rows than tokens.
        least = 1 if fine else 0
        mixed = {Bucket(count, min(rows, count - least)) for count in tokens for rows in mixed_rows if least < count >= rows}
        return cls(tuple(sorted(decode | mixed)), free_padding, decodes_apart=fine)

    def fewest(self) -> BucketGrid:
        """The largest decode step and the largest step alone, which hold every plan."""
        decodes = [bucket for bucket in self.buckets if bucket.tokens == bucket.rows]
        return replace(self, buckets=tuple(sorted({*decodes[-1:], self.buckets[-1]})))

    def with_drafts(self, most: int) -> BucketGrid:
        """With buckets for steps whose rows have drafts, `most` at most; the others choose a token a row."""
        wide = {self.widened(bucket, most) for bucket in self.buckets}
        return replace(self, buckets=tuple(sorted({*self.buckets, *wide})))

    def with_adapters(self) -> BucketGrid:
        """With as many for steps of which rows have adapters."""
        adapted = {replace(bucket, adapted=True) for bucket in self.buckets}
        return replace(self, buckets=tuple(sorted({*self.buckets, *adapted})))

    def widened(self, bucket: Bucket, most: int) -> Bucket:
        """As many rows with so many drafts each: all fit beside decodes, and take prompts' places elsewhere."""
        tokens = min(bucket.rows * (1 + most), self.max_tokens) if bucket.tokens == bucket.rows else bucket.tokens
        return Bucket(tokens, bucket.rows, most)

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens, ascending: a step costs about what one of the smallest of them that holds it costs."""
        if not self.free_padding:
            return tuple(sorted({bucket.tokens for bucket in self.buckets if not bucket.drafts}))
        powers = _doubling(FREE_STEPS, self.max_tokens)
        sizes = [size for power in powers for size in range(power, 2 * power, power // FREE_STEPS)]
        return (*(size for size in sizes if size < self.max_tokens), self.max_tokens)

    @property
    def max_tokens(self) -> int:
        """T of the largest bucket."""
        return max(bucket.tokens for bucket in self.buckets)

    def first(self) -> frozenset[Bucket]:
        """The few that serving can begin with: the smallest decode step, and the largest step of every row count with prompts.

        The last of them holds every plan. Of those with adapters as many.
        """
        bare = [bucket for bucket in self.buckets if not bucket.adapted]
        plain = [bucket for bucket in bare if not bucket.drafts]
        chunks = {bucket.rows: bucket for bucket in plain if bucket.tokens > bucket.rows}  # later ones are larger
        decode = [bucket for bucket in plain if bucket.tokens == bucket.rows]
        few = {*decode[:1], *decode[-1:], bare[-1], *chunks.values()}
        return frozenset(bucket for bucket in self.buckets if replace(bucket, adapted=False) in few)

    def choose(
        self,
        tokens: int,
        rows: int,
        longest: int = 1,
        among: Container[Bucket] | None = None,
        *,
        drafts: int = 0,
        adapted: bool = False,
    ) -> Bucket:
        """The cheapest bucket (of those `among`, if given) that holds a plan. Raises ValueError if none does.

        A plan without drafts gets one for drafts only if no other holds it.

        Args:
            tokens, rows: of the plan.
            longest: tokens of the row that has most.
            among: those to choose of.
            drafts: of the row that has most.
            adapted: whether rows have adapters.
        """
        apart = self.decodes_apart and longest > FEW_TOKENS
        for bucket in self._wide if drafts else self._plain_first:
            if bucket.adapted is not adapted:
                continue
            if bucket.tokens < tokens or bucket.rows < rows or bucket.drafts < drafts or (apart and bucket.tokens == bucket.rows):
                continue
            if among is None or bucket in among:
                return bucket
        raise ValueError(f"no bucket holds {tokens} tokens in {rows} rows; the largest is {self.buckets[-1]}")


def _doubling(low: int, high: int) -> list[int]:
    """low, 2 low, 4 low, ... below high."""
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return values
