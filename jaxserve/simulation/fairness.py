"""How evenly tenants are served: Jain's index of their token-work while they compete.

    (sum of x)^2 / (n sum of x^2)

is 1 where all x are equal and 1/n where one has everything (Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and
Discrimination", DEC-TR-301, 1984). A tenant that asks for little is rightly served little. So x is a tenant's token-work over its
weight in a window of time in which its requests waited throughout; windows with fewer than two such tenants do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

WINDOW_S = 10.0


def jain(values: Iterable[float]) -> float:
    """Jain's index; 1 if there is nothing to share."""
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


class Fairness:
    """Watches tenants over time, in bounded memory.

    Args:
        prefill_price, decode_price: work of one prompt token and of one output token.
        weight: of a tenant.
    """

    def __init__(self, prefill_price: float, decode_price: float, weight: Callable[[str], float]) -> None:
        self._prefill_price = prefill_price
        self._decode_price = decode_price
        self._weight = weight
        self._waiting: dict[str, int] = {}  # tenant -> requests without a token
        self._backlogged: set[str] = set()  # tenants that waited all through this window so far
        self._work: dict[str, float] = {}  # done for them in this window
        self._window = 0
        self._sum = 0.0
        self._count = 0

    @property
    def index(self) -> float | None:
        """Mean of the windows that are over; None if tenants never competed."""
        return self._sum / self._count if self._count else None

    def enters(self, tenant: str, now: float) -> None:
        """A request waits."""
        self._advance(now)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def leaves(self, tenant: str, now: float) -> None:
        """A request waits no more: it got its first token, or ended without one."""
        self._advance(now)
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._backlogged.discard(tenant)

    def served(self, tenant: str, prompt: int, output: int, now: float) -> None:
        self._advance(now)
        work = self._prefill_price * prompt + self._decode_price * output
        self._work[tenant] = self._work.get(tenant, 0.0) + work

    def _advance(self, now: float) -> None:
        """Close the windows before this time; whoever waits at the end of the last one waited through those after it."""
        window = int(now / WINDOW_S)
        if window == self._window:
            return
        if len(self._backlogged) > 1:
            self._sum += jain(self._work.get(tenant, 0.0) / self._weight(tenant) for tenant in self._backlogged)
            self._count += 1
        self._window = window
        self._work.clear()
        self._backlogged = set(self._waiting)
