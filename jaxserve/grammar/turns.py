"""A queue that takes turns between tenants, each first in, first out."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class TenantTurns(Generic[Job]):
    """Used by any number of threads. The next job is the oldest of the tenant whose latest turn is longest ago."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, tenant: str, job: Job) -> bool:
        """Queue a job. Returns False once the queue is closed."""
        with self._changed:
            if not self._closed:
                self._queues.setdefault(tenant, deque()).append(job)
                self._changed.notify()
            return not self._closed

    def remove(self, tenant: str, job: Job) -> None:
        """Remove a job of a tenant. Does nothing if it has been taken."""
        with self._changed:
            queue = self._queues.get(tenant, deque())
            if job in queue:
                queue.remove(job)
            if not queue:
                self._queues.pop(tenant, None)

    def take(self) -> Job | None:
        """Wait for the next job; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._closed)
            if self._closed:
                return None
            tenant, queue = self._queues.popitem(last=False)
            job = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            return job

    def close(self) -> list[Job]:
        """End all waiting for jobs. Returns the jobs that are left."""
        with self._changed:
            self._closed = True
            left = [job for queue in self._queues.values() for job in queue]
            self._queues.clear()
            self._changed.notify_all()
            return left
