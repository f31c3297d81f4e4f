"""The order in which one step's admission is offered the sequences that wait."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.request import RANKS, Sequence
from jaxserve.types import ServiceClass

Queues = dict[str, deque[Sequence]]  # tenant -> its sequences; none of them is empty


class Line:
    """The heads of the queues, tenants in order of their token-work, classes in order of their wait.

    Args:
        queues: the sequences that wait; those that are admitted leave it.
        served: time at which a sequence of each class was last admitted.
        work: the tenants' counters.
        aging: seconds that a class's wait counts less than that of the class above it.
    """

    def __init__(
        self, queues: Mapping[ServiceClass, Queues], served: Mapping[ServiceClass, float], work: TokenWork, aging: float
    ) -> None:
        self._queues = queues
        self._served = served
        self._work = work
        self._aging = aging
        self._tenants: dict[ServiceClass, list[tuple[float, int, str]]] = {}
        for service_class, waiting in queues.items():
            heap = [(work.counter(tenant), index, tenant) for index, tenant in enumerate(waiting)]
            heapq.heapify(heap)
            self._tenants[service_class] = heap

    def next(self, *, only_interactive: bool) -> Sequence | None:
        """The sequence to admit next. `only_interactive`: batch is offered only where age puts it before an interactive one."""
        best: Sequence | None = None
        best_key = (0.0, 0)
        interactive = False
        for service_class, heap in self._tenants.items():
            if not heap:
                continue
            interactive = interactive or service_class is not ServiceClass.BATCH
            head = self._queues[service_class][heap[0][2]][0]
            rank = RANKS[service_class]
            key = (max(head.request.arrival, self._served[service_class]) + rank * self._aging, rank)
            if best is None or key < best_key:
                best, best_key = head, key
        return best if interactive or not only_interactive else None

    def skip_tenant(self, sequence: Sequence) -> None:
        """Nothing of the tenant and class of `sequence`, which `next` gave, is offered any more."""
        heapq.heappop(self._tenants[sequence.service_class])

    def skip_class(self, service_class: ServiceClass) -> None:
        """Nothing of the class is offered any more."""
        self._tenants[service_class] = []

    def admitted(self, sequence: Sequence) -> None:
        """`sequence`, which `next` gave, has left the queue, and its tenant was charged."""
        service_class, tenant = sequence.service_class, sequence.request.tenant
        heap = self._tenants[service_class]
        _, index, _ = heapq.heappop(heap)
        if tenant in self._queues[service_class]:
            heapq.heappush(heap, (self._work.counter(tenant), index, tenant))
