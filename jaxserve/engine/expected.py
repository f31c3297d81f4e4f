"""Requests of lists that are about to come: they are prepared one after another, and all need room in the waiting queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ExpectedRequests:
    """Counts them by tenant, from when a list was let in until each has come or the list is over."""

    def __init__(self) -> None:
        self.sequences = 0
        self._by_tenant: dict[str, dict[str, int]] = {}  # request -> its sequences

    def of(self, tenant: str) -> int:
        return sum(self._by_tenant.get(tenant, {}).values())

    @contextmanager
    def expect(self, tenant: str, names: Iterable[str], sequences: int) -> Iterator[None]:
        """Within it requests of these names, so many sequences each, are expected until they come."""
        names = list(names)
        self._by_tenant.setdefault(tenant, {}).update(dict.fromkeys(names, sequences))
        self.sequences += sequences * len(names)
        try:
            yield
        finally:
            for name in names:
                self.came(tenant, name)

    def came(self, tenant: str, name: str) -> None:
        """A request came; one that was not expected is passed over."""
        expected = self._by_tenant.get(tenant)
        if expected is None or name not in expected:
            return
        self.sequences -= expected.pop(name)
        if not expected:
            del self._by_tenant[tenant]
