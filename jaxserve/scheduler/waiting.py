"""Sequences that wait to run: by class, in each class by tenant, in each tenant first come first served.

The next class is the one whose head has waited longest, where each class below the first counts `aging` seconds less. A class's
wait starts anew whenever one of its sequences is admitted: under lasting load of the classes above it a class still gets one
sequence in about `aging` seconds a rank, and a long queue of old batch work gets no more than that. In a class the tenant with
the least token-work is next. Preempted sequences come back to the front.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile

from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.scheduler.request import RANKS, Sequence
from jaxserve.types import ServiceClass

Queues = dict[str, deque[Sequence]]  # tenant -> its sequences; none of them is empty


class AdmissionOrder:
    """The heads of the queues, tenants in order of their token-work, classes in order of their wait.

    Args:
        queues: the sequences that wait; those that are admitted leave it.
        served: time at which a sequence of each class was last admitted.
        aging: seconds that a class's wait counts less than that of the class above it.
    """

    def __init__(
        self,
        queues: Mapping[ServiceClass, Queues],
        served: Mapping[ServiceClass, float],
        work: TokenWork,
        aging: float,
        policy: Policy,
    ) -> None:
        self._queues = queues
        self._served = served
        self._work = work
        self._aging = aging
        self._policy = policy
        self._tenants: dict[ServiceClass, list[tuple[float, int, str]]] = {}
        self._skipped: Counter[tuple[ServiceClass, str]] = Counter()  # at the head of a tenant's queue
        for service_class, waiting in queues.items():
            heap = [(self._place(queue[0]), index, tenant) for index, (tenant, queue) in enumerate(waiting.items())]
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
            tenant = heap[0][2]
            head = self._queues[service_class][tenant][self._skipped[service_class, tenant]]
            rank = RANKS[service_class]
            key = (max(head.request.arrival, self._served[service_class]) + rank * self._aging, rank)
            if best is None or key < best_key:
                best, best_key = head, key
        return best if interactive or not only_interactive else None

    def skip_tenant(self, sequence: Sequence) -> None:
        """Nothing of the tenant and class of `sequence`, which `next` gave, is offered any more."""
        heapq.heappop(self._tenants[sequence.service_class])

    def skip(self, sequence: Sequence) -> None:
        """`sequence`, which `next` gave, is not offered any more, but those of its tenant behind it."""
        self._skipped[sequence.service_class, sequence.request.tenant] += 1
        self._offer_next(sequence)

    def skip_class(self, service_class: ServiceClass) -> None:
        """Nothing of the class is offered any more."""
        self._tenants[service_class] = []

    def admitted(self, sequence: Sequence) -> None:
        self._offer_next(sequence)

    def _offer_next(self, sequence: Sequence) -> None:
        service_class, tenant = sequence.service_class, sequence.request.tenant
        heap = self._tenants[service_class]
        _, index, _ = heapq.heappop(heap)
        queue, skipped = self._queues[service_class].get(tenant, ()), self._skipped[service_class, tenant]
        if len(queue) > skipped:
            heapq.heappush(heap, (self._place(queue[skipped]), index, tenant))

    def _place(self, first: Sequence) -> float:
        return self._policy.order(first, self._work.counter(first.request.tenant))


class WaitingQueue:
    """Every sequence that waits, siblings held behind their first sequence included.

    Attributes:
        queues: what could be admitted, by class and tenant, to be read only.
        is_shed: whether load is shed: then what waits is bounded, and steps need not grow with it.

    Args:
        aging: seconds that a class's wait counts less than that of the class above it.
    """

    def __init__(self, work: TokenWork, aging: float, policy: Policy = DEFAULT_POLICY) -> None:
        self._work = work
        self._aging = aging
        self._policy = policy
        self.queues: dict[ServiceClass, Queues] = {service_class: {} for service_class in ServiceClass}
        self._served = dict.fromkeys(ServiceClass, -math.inf)  # time of the latest admission
        self._queued_work: dict[ServiceClass, dict[str, float]] = {service_class: {} for service_class in ServiceClass}
        self._held = 0
        self._length = 0
        self.is_shed = False
        self._tokens = dict.fromkeys(ServiceClass, 0)

    def __len__(self) -> int:
        return self._length + self._held

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences that could be admitted; those held behind another are not among them."""
        for queues in self.queues.values():
            for queue in queues.values():
                yield from queue

    @property
    def num_tokens(self) -> int:
        return sum(self._tokens.values())

    @property
    def interactive_tokens(self) -> int:
        """Tokens of those of interactive classes, as far as steps should be larger because of them."""
        return 0 if self.is_shed else self.num_tokens - self._tokens[ServiceClass.BATCH]

    @property
    def has_interactive(self) -> bool:
        return any(queues for service_class, queues in self.queues.items() if service_class is not ServiceClass.BATCH)

    def tenants(self) -> set[str]:
        return {tenant for queues in self.queues.values() for tenant in queues}

    def append(self, sequence: Sequence, *, before_late: bool = False) -> None:
        """Queue a new sequence, with its siblings held behind it; last, or before the late ones at the end.

        One that another engine had taken in comes before all that did not begin.
        """
        queue = self._tenant_queue(sequence)
        if sequence.request.resumed:
            place = sum(1 for _ in takewhile(lambda one: not _has_not_begun(one), queue))
        else:
            place = len(queue) - (sum(1 for _ in takewhile(lambda one: one.late, reversed(queue))) if before_late else 0)
        queue.insert(place, sequence)
        self._count_in(sequence)
        self.hold(sequence, sequence.siblings)

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Sequences that were admitted before, or whose sibling was, come before all others of their tenant, the first first."""
        for sequence in reversed(list(sequences)):
            self._tenant_queue(sequence).appendleft(sequence)
            self._count_in(sequence)

    def hold(self, first: Sequence, siblings: list[Sequence]) -> None:
        first.siblings = siblings
        self._held += len(siblings)
        for sibling in siblings:
            self._counts(sibling)

    def yield_late(self, is_late: Callable[[float], bool], now: float) -> None:
        """Interactive requests that waited too long to be in time go to the end of their queues, and count as no work there."""
        for service_class, queues in self.queues.items():
            if service_class is ServiceClass.BATCH:
                continue
            for tenant, queue in queues.items():
                while not queue[0].late and _has_not_begun(queue[0]) and is_late(now - queue[0].request.arrival):
                    sequence = queue.popleft()
                    sequence.late = True
                    self._queued_work[service_class][tenant] -= sequence.queued_work
                    sequence.queued_work = 0.0
                    queue.append(sequence)

    def release(self, first: Sequence) -> list[Sequence]:
        """The siblings held behind `first`, which waits for them no more and is no more waited for."""
        siblings, first.siblings = first.siblings, []
        self._held -= len(siblings)
        for sibling in siblings:
            self._counts_no_more(sibling)
        return siblings

    def succeed(self, ended: Sequence) -> None:
        """The first of the siblings of a sequence that ended takes its place."""
        first, *others = self.release(ended)
        first.parent = None
        for sibling in others:
            sibling.parent = first
        self.put_back([first])
        self.hold(first, others)

    def order(self) -> AdmissionOrder:
        return AdmissionOrder(self.queues, self._served, self._work, self._aging, self._policy)

    def served(self, service_class: ServiceClass, now: float) -> None:
        self._served[service_class] = now

    def pop(self, sequence: Sequence, now: float) -> None:
        self.served(sequence.service_class, now)
        self._take_out(sequence)

    def remove(self, sequence: Sequence) -> None:
        first = sequence.parent
        if first is not None and sequence in first.siblings:
            first.siblings.remove(sequence)
            self._held -= 1
            self._counts_no_more(sequence)
        else:
            self._take_out(sequence)

    def set_class(self, sequence: Sequence, service_class: ServiceClass) -> None:
        """Let the sequence wait in another class, in front of its tenant's others there."""
        held = sequence.parent is not None and sequence in sequence.parent.siblings
        if held:
            self._counts_no_more(sequence)
            sequence.set_class(service_class)
            self._counts(sequence)
        else:
            self._take_out(sequence)
            sequence.set_class(service_class)
            self.put_back([sequence])

    def newest_of_most_crowded(self, tenant: str, count: int) -> Sequence | None:
        """The newest request that has not started, by its first sequence, of the tenant with most in the queue for its weight.

        None if `tenant` would have as much with `count` sequences more.
        """

        def crowding(name: str, more: int) -> float:
            return (self._work.num_waiting(name) + more) / self._work.weight(name)

        most = max(self.tenants(), key=lambda name: crowding(name, 0), default=tenant)
        if crowding(most, 0) <= crowding(tenant, count):
            return None
        for service_class in reversed(ServiceClass):
            for sequence in reversed(self.queues[service_class].get(most, deque())):
                if _has_not_begun(sequence):
                    return sequence
        return None

    def grew(self, sequence: Sequence, count: int) -> None:
        """A step that was in flight when the sequence was preempted gave it tokens."""
        self._tokens[sequence.service_class] += count

    def works_ahead(self) -> tuple[dict[tuple[ServiceClass, str], float], dict[ServiceClass, float]]:
        """`work_ahead` of every interactive class: for the tenants that wait in it, and for all others."""
        waits: dict[tuple[ServiceClass, str], float] = {}
        others: dict[ServiceClass, float] = {}
        higher = 0.0
        for service_class, queued in self._queued_work.items():  # in order of rank
            if service_class is ServiceClass.BATCH:
                continue
            weights, total = sum(map(self._work.weight, queued)), sum(queued.values())
            others[service_class] = higher
            for tenant, work in queued.items():
                waits[service_class, tenant] = higher + min(work * weights / self._work.weight(tenant), total)
            higher += total
        return waits, others

    @property
    def interactive_work(self) -> float:
        """Token-work of those of interactive classes, late ones not counted."""
        return sum(
            sum(queued.values()) for service_class, queued in self._queued_work.items() if service_class is not ServiceClass.BATCH
        )

    def work_ahead(self, tenant: str, service_class: ServiceClass) -> float:
        """Token-work that is done before a new sequence of the tenant: higher classes' and a fair part of its own class's.

        In its class a tenant gets its weight's share of the work, so what waits for others there delays it by no more than its
        own queue takes at that share.
        """
        rank = RANKS[service_class]
        higher = sum(sum(queued.values()) for other, queued in self._queued_work.items() if RANKS[other] < rank)
        queued = self._queued_work[service_class]
        weights = {name: self._work.weight(name) for name in (*queued, tenant)}
        own = queued.get(tenant, 0.0) * sum(weights.values()) / weights[tenant]
        return higher + min(own, sum(queued.values()))

    def check(self, held: list[Sequence]) -> None:
        waiting = [*self, *held]
        assert len(waiting) == len(self) == len(set(map(id, waiting)))
        for service_class, tokens in self._tokens.items():
            assert tokens == sum(len(sequence.tokens) for sequence in waiting if sequence.service_class is service_class)
        for service_class, queues in self.queues.items():
            assert set(queues) == set(self._queued_work[service_class]), "queued work of a tenant that does not wait"
            for tenant, queue in queues.items():
                assert queue, "an empty queue is kept"
                assert all((one.request.tenant, one.service_class) == (tenant, service_class) for one in queue)

    def _tenant_queue(self, sequence: Sequence) -> deque[Sequence]:
        return self.queues[sequence.service_class].setdefault(sequence.request.tenant, deque())

    def _counts(self, sequence: Sequence) -> None:
        self._tokens[sequence.service_class] += len(sequence.tokens)
        self._work.wait(sequence.request.tenant)

    def _counts_no_more(self, sequence: Sequence) -> None:
        self._tokens[sequence.service_class] -= len(sequence.tokens)
        self._work.wait_no_more(sequence.request.tenant)

    def _count_in(self, sequence: Sequence) -> None:
        self._length += 1
        self._counts(sequence)
        queued, tenant = self._queued_work[sequence.service_class], sequence.request.tenant
        queued[tenant] = queued.get(tenant, 0.0) + sequence.queued_work

    def _take_out(self, sequence: Sequence) -> None:
        service_class, tenant = sequence.service_class, sequence.request.tenant
        queues, queued = self.queues[service_class], self._queued_work[service_class]
        queue = queues[tenant]
        if queue[0] is sequence:
            queue.popleft()
        else:
            queue.remove(sequence)
        queued[tenant] -= sequence.queued_work
        if not queue:
            del queues[tenant], queued[tenant]
        self._length -= 1
        self._counts_no_more(sequence)


def _has_not_begun(sequence: Sequence) -> bool:
    """Whether nothing of its request ever ran: one that waited for its request's first sequence is of a request that began.

    One that another engine had taken in counts as begun: it had its wait.
    """
    request = sequence.request
    return sequence.admitted is None and request.parent is None and not request.resumed
