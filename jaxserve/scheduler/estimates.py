"""What is expected: how long outputs get, how long what waits takes, and what of it need not be computed."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence as ListOf

from jaxserve.cache.kv_cache import KVCache
from jaxserve.scheduler.request import EngineRequest, Sequence
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


HORIZON = 10.0  # seconds over which the rate is averaged
SHORTEST, MOST_WORK = 1e-6, 1e9  # seconds and token-work that a step is believed to have: a clock may have stood still
SLOWEST = 1e-3  # token-work a second that is believed
OUTLIER, SHORT = 4.0, 0.1  # a step counts as at most so many times what was expected, or of so many seconds: a pause is no trend
CORRECTION_RATE = 1 / 8  # weight of the newest comparison of an estimate with what happened
OFF, LEAST_OFF = 2.0, 0.5  # an estimate is wrong if it misses by this factor and by so many seconds
MOST_CORRECTED = 8.0  # times by which estimates are corrected at most, either way


class WaitEstimate:
    """Seconds from token-work.

    Attributes:
        num_wrong: estimates that were off by more than twice.
    """

    def __init__(self) -> None:
        self.num_wrong = 0
        self._work = 0.0  # done lately by steps that had no room for more; older work counts less
        self._seconds = 0.0  # that it took
        self._log_correction = 0.0

    @property
    def rate(self) -> float:
        """Token-work a second; 0 until measured."""
        return self._work / self._seconds if self._seconds else 0.0

    def observe(self, work: float, seconds: float) -> None:
        """A step did this much work while sequences waited: as much as the machine can."""
        if not (math.isfinite(seconds) and seconds > 0.0 and math.isfinite(work) and work >= 0.0):
            return
        work, seconds = min(work, MOST_WORK), max(seconds, SHORTEST)
        if self._seconds and self._work:
            seconds = min(seconds, OUTLIER * max(self.uncorrected(work), SHORT))
        kept = math.exp(-seconds / HORIZON)
        self._work = kept * self._work + work
        self._seconds = kept * self._seconds + seconds

    def seconds(self, work: float) -> float:
        """Seconds until so much work is done; 0 while nothing is known."""
        return self.uncorrected(work) * math.exp(self._log_correction)

    def uncorrected(self, work: float) -> float:
        return work / max(self.rate, SLOWEST) if self.rate else 0.0

    def compare(self, uncorrected: float, waited: float) -> None:
        """A request started after so many seconds, for which `uncorrected` were worked out when it came."""
        estimate = uncorrected * math.exp(self._log_correction)
        if not uncorrected or max(estimate, waited) < LEAST_OFF or not math.isfinite(waited):
            return
        ratio = max(waited, LEAST_OFF) / max(uncorrected, LEAST_OFF)
        if abs(waited - estimate) > LEAST_OFF and not 1 / OFF <= max(waited, LEAST_OFF) / max(estimate, LEAST_OFF) <= OFF:
            self.num_wrong += 1
        wanted = min(max(math.log(ratio), -math.log(MOST_CORRECTED)), math.log(MOST_CORRECTED))
        self._log_correction += CORRECTION_RATE * (wanted - self._log_correction)


class SharedPrefixes:
    """Full pages of the prompts of unfinished sequences, by hash. Empty where prefixes are not cached."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._pages: Counter[bytes] = Counter()

    def enter(self, sequence: Sequence) -> int:
        """A sequence arrives. Returns how many tokens of its prompt are cached, or will be by sequences before it."""
        found = self._cache.find(sequence.request.cache_root, sequence.tokens, sequence.prefix_hashes).num_tokens
        hashes = self._of(sequence)
        shared = found // self._cache.page_size
        while shared < len(hashes) and hashes[shared] in self._pages:
            shared += 1
        self._pages.update(hashes)
        shared_tokens = max(found, shared * self._cache.page_size)
        sequence.num_shared = min(shared_tokens, sequence.num_read) if sequence.is_read else shared_tokens
        return sequence.num_shared

    def leave(self, sequence: Sequence) -> None:
        """A sequence that entered ends."""
        for digest in self._of(sequence):
            self._pages[digest] -= 1
            if not self._pages[digest]:
                del self._pages[digest]

    def check(self, unfinished: ListOf[Sequence]) -> None:
        """Assert that what is counted is what the unfinished sequences that entered have."""
        assert self._pages == Counter(digest for sequence in unfinished for digest in self._of(sequence))

    def _of(self, sequence: Sequence) -> list[bytes]:
        """Hashes of the pages that any sequence with its prompt could find: all but the one with its last token."""
        return sequence.prefix_hashes[: (sequence.num_prompt - 1) // self._cache.page_size]
