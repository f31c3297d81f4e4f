"""The few step shapes that are compiled: every plan is padded up to one of them.

Decode steps have as many tokens as rows: powers of two. Steps with prompt chunks have more tokens than rows; rows cost little
there (a row is one line of the logits), so their row count takes few values.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_ROWS = 32  # row count of steps with prompt chunks, unless more rows run


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A step's padded shape: T tokens in R rows."""

    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class BucketGrid:
    """All buckets, cheapest first."""

    buckets: tuple[Bucket, ...]

    @classmethod
    def make(cls, *, max_rows: int, max_tokens: int, min_rows: int) -> BucketGrid:
        """Buckets for up to `max_rows` rows and `max_tokens` tokens a step, none with fewer than `min_rows` rows."""
        max_rows, max_tokens = max(max_rows, min_rows), max(max_tokens, min_rows)
        rows = [*_doubling(min_rows, max_rows), max_rows]
        decode = {Bucket(count, count) for count in rows}
        mixed_rows = {min(CHUNK_ROWS, max_rows), max_rows}
        tokens = [*_doubling(2 * CHUNK_ROWS, max_tokens), max_tokens]
        mixed = {Bucket(count, rows) for count in tokens for rows in mixed_rows if rows <= count}
        return cls(tuple(sorted(decode | mixed)))

    def choose(self, tokens: int, rows: int) -> Bucket:
        """The cheapest bucket that holds a plan. Raises ValueError if none does."""
        for bucket in self.buckets:
            if bucket.tokens >= tokens and bucket.rows >= rows:
                return bucket
        raise ValueError(f"no bucket holds {tokens} tokens in {rows} rows; the largest is {self.buckets[-1]}")


def _doubling(low: int, high: int) -> list[int]:
    """low, 2 low, 4 low, ... below high."""
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return values
