"""What requests are expected to take, learned from those before: output lengths."""

from __future__ import annotations

from collections import OrderedDict

from jaxserve.scheduler.request import EngineRequest
from jaxserve.types import ServiceClass

PRIOR = 256.0  # tokens, until the first output of a class has ended
RATE = 1 / 16  # weight of the newest output
MAX_TENANTS = 4096  # remembered; the one not seen for longest is forgotten first
LATE = 1.25  # an output longer than expected is expected to get this many times as long as it is


class OutputLengths:
    """Moving averages of output lengths.

    Attributes:
        expected_tokens, actual_tokens: sums over all outputs that ended, to see how good the estimates are.
    """

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._class_means: dict[str, float] = {}
        self.expected_tokens = 0.0
        self.actual_tokens = 0

    def expected(self, request: EngineRequest) -> float:
        """Output tokens expected of a request, at most its `max_tokens`."""
        mean = self._means.get((request.tenant, request.service_class))
        if mean is None:
            mean = self.of_class(request.service_class)
        return min(mean, request.max_tokens)

    def of_class(self, service_class: ServiceClass) -> float:
        """Output tokens expected of requests of a class that nothing else is known of."""
        return self._class_means.get(service_class, PRIOR)

    def remaining(self, request: EngineRequest, num_output: int) -> float:
        """Output tokens still expected after `num_output` of them."""
        total = max(self.expected(request), LATE * num_output)
        return max(0.0, min(total, request.max_tokens) - num_output)

    def observe(self, request: EngineRequest, num_output: int) -> None:
        """An output ended by itself, `num_output` tokens long."""
        self.expected_tokens += self.expected(request)
        self.actual_tokens += num_output
        key = (request.tenant, str(request.service_class))
        self._means[key] = _moved(self._means.get(key), num_output)
        self._means.move_to_end(key)
        if len(self._means) > MAX_TENANTS:
            self._means.popitem(last=False)
        self._class_means[key[1]] = _moved(self._class_means.get(key[1]), num_output)


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else mean + RATE * (value - mean)
