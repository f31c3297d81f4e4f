"""PrefixRouter: to a replica that has computed the request's prompt before, as far as none gets more than its share of work."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from jaxserve.routing.bounded import BoundedWork, Slotwise
from jaxserve.routing.branches import Branches
from jaxserve.routing.fair_lru import FairLru
from jaxserve.routing.hot import HotPrefixes
from jaxserve.routing.pace import Pace
from jaxserve.routing.prefix_settings import DEFAULT_PREFIX_SETTINGS, PrefixSettings
from jaxserve.routing.prefixes import PrefixKnowledge
from jaxserve.routing.rendezvous import Rendezvous
from jaxserve.routing.router import PageListener, ReplicaLoad, RoutingRequest
from jaxserve.routing.slots import Slots
from jaxserve.types import ServiceClass

_RANKS = MappingProxyType({name: rank for rank, name in enumerate(ServiceClass)})
_LEVELS = 4  # lengths of known prefixes that are tried, the longest first: each costs a look at all replicas


@dataclass(slots=True)
class _Prompt:
    """A request as it is looked at.

    Attributes:
        marks: its landmarks' hashes.
        span: tokens from one landmark to the next.
        levels: (landmarks, replicas that hold at least so many), the most first.
        key: what the prompt is one of; None for prompts without a landmark.
        shared: landmarks up to the key.
    """

    request: RoutingRequest
    rank: int
    marks: tuple[bytes, ...]
    span: int
    levels: list[tuple[int, int]]
    key: bytes | None
    shared: int


@dataclass(frozen=True, slots=True)
class _Sent:
    time: float
    ahead: float


class PrefixRouter:
    """A Router. In this order a request goes to: the replica of its session; one that holds the most of its prompt; the home that
    rendezvous hashing gives what the prompt is one of; each only if it is under the bound. Else to the replica with the least
    work ahead, and also if its deadline would not be kept where it belongs. Deterministic.
    """

    def __init__(self, settings: PrefixSettings = DEFAULT_PREFIX_SETTINGS) -> None:
        self.settings = settings
        self._slots = Slots()
        self._rendezvous = Rendezvous()
        self._work = BoundedWork(settings.slack, settings.grain, settings.yielding)
        self._knowledge = PrefixKnowledge(settings.most_landmarks)
        self._branches = Branches(settings.most_prefixes)
        self._hot = HotPrefixes(settings.most_prefixes, settings.heat_seconds, settings.grain)
        self._sessions: FairLru[tuple[str, str], str] = FairLru(settings.most_sessions)
        self._pace = Pace()
        self._sent: dict[str, _Sent] = {}
        self._reporting: set[int] = set()  # slots of replicas that say what they hold
        self._page_size = 1  # of requests; before the first, nothing is known that could be too much

    @property
    def pages(self) -> PageListener:
        return self

    def join(self, replica: str, weight: float = 1.0) -> None:
        """Raises ValueError for a weight that is not above 0 and finite."""
        if not 0.0 < weight < math.inf:
            raise ValueError(f"a replica's weight must be above 0 and finite, got {weight}")
        slot = self._slots.join(replica)
        self._rendezvous.join(slot, replica, weight)
        self._work.join(slot, weight)
        self._knowledge.join(slot)

    def leave(self, replica: str) -> None:
        slot = self._slots.leave(replica)
        if slot is None:
            return
        self._reporting.discard(slot)
        self._rendezvous.leave(slot)
        self._knowledge.leave(slot)
        for request in self._work.leave(slot):
            del self._sent[request]

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """Of prompts, landmarks are known; of a replica that says what it holds, all of its pages."""
        slot = self._slots.get(replica)
        if slot is not None and load.pages_total > 0:
            self._knowledge.holds(slot, -(-load.pages_total // (1 if slot in self._reporting else self._stride())))

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        self.ended(request.id, now)  # one that is sent again without it
        usable = self._usable(excluded)
        if not usable.any():
            return None
        self._page_size = request.page_size
        prompt = self._prompt(request)
        if prompt.key is not None:
            self._hot.count(request.tenant, prompt.key, self._prefill(prompt, 0) + self._decode(request), now)
        slot, least = self._home(prompt, usable), self._least(prompt.rank, usable)
        if slot is None or self._too_late(prompt, slot, least, now):
            slot = least
        self._send(prompt, slot, now)
        return self._slots.name(slot)

    def started(self, request_id: str, now: float) -> None:
        self._work.started(request_id)

    def ended(self, request_id: str, now: float) -> None:
        if self._work.ended(request_id):
            sent = self._sent.pop(request_id)
            self._pace.ended(sent.ahead, now - sent.time)

    def stored(self, replica: str, pages: Iterable[bytes]) -> None:
        """A replica says that it holds these pages."""
        slot = self._slots.get(replica)
        if slot is not None:
            if slot not in self._reporting:
                self._reporting.add(slot)
                self._knowledge.holds(slot, None)  # room for landmarks alone, as far as was known
            self._knowledge.learn(slot, tuple(pages), "")

    def removed(self, replica: str, pages: Iterable[bytes]) -> None:
        """A replica says that it holds these pages no more."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._knowledge.removed(slot, pages)

    def cleared(self, replica: str) -> None:
        """A replica says that it holds nothing."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._knowledge.cleared(slot)

    def work(self, replica: str) -> int:
        """Token-work in flight at a replica that is there."""
        slot = self._slots.get(replica)
        if slot is None:
            raise KeyError(replica)
        return self._work.work(slot)

    def stride(self, page_size: int) -> int:
        return max(self.settings.landmark_tokens // page_size, 1)

    def _stride(self) -> int:
        return self.stride(self._page_size)

    def _usable(self, excluded: Collection[str]) -> Slotwise:
        usable = self._work.present
        for name in excluded:
            slot = self._slots.get(name)
            if slot is not None:
                usable[slot] = False
        return usable

    def _prompt(self, request: RoutingRequest) -> _Prompt:
        stride = self._stride()
        marks, span = request.pages[stride - 1 :: stride], stride * request.page_size
        least = -(-self.settings.least_share * request.tokens // span)  # landmarks that are worth anything
        levels = self._knowledge.levels(marks)
        known = levels[0][0] if levels else 0
        if known:
            self._branches.parted(request.tenant, marks[known - 1])
        shared = self._branches.deepest(marks[:known])
        if shared < max(least, 1):
            shared = min(len(marks), max(self.settings.first_landmarks, known + 1))
        levels = [level for level in levels[:_LEVELS] if level[0] >= least]
        key = marks[shared - 1] if marks else None
        return _Prompt(request, _RANKS[request.service_class], marks, span, levels, key, shared)

    def _prefill(self, prompt: _Prompt, landmarks: int) -> int:
        """Work of its prompt where so much of it is known; its last token is always computed."""
        return round(self.settings.prefill_price * max(prompt.request.tokens - landmarks * prompt.span, 1))

    def _decode(self, request: RoutingRequest) -> int:
        return round(self.settings.decode_price * request.output_tokens)

    def _home(self, prompt: _Prompt, usable: Slotwise) -> int | None:
        """Where it belongs, if there is room."""
        slot = self._of_session(prompt, usable)
        if slot is not None or prompt.key is None:
            return slot
        copies = self._hot.copies(prompt.key, len(self._slots), self._pace.residence)
        scores = self._rendezvous.scores(prompt.key)
        for landmarks, mask in prompt.levels:
            holders = _slots_of(mask, len(usable)) & usable
            fits = self._fits(prompt, landmarks, holders) & usable
            wanted = holders & fits
            if not wanted.any():
                continue
            if landmarks > prompt.shared or copies == 1:
                return int(np.where(wanted, scores, -1.0).argmax())
            return self._lightest(prompt, scores, wanted, fits, copies, landmarks)
        home = np.zeros(len(usable), bool)
        home[np.where(usable, scores, -1.0).argmax()] = True
        fits = self._fits(prompt, 0, home) & usable
        return self._lightest(prompt, scores, np.zeros_like(fits), fits, copies, 0) if fits.any() else None

    def _of_session(self, prompt: _Prompt, usable: Slotwise) -> int | None:
        if prompt.request.session is None:
            return None
        replica = self._sessions.get((prompt.request.tenant, prompt.request.session))
        slot = None if replica is None else self._slots.get(replica)
        if slot is None or not usable[slot]:
            return None
        wanted = np.zeros(len(usable), bool)
        wanted[slot] = True
        return slot if self._fits(prompt, self._known_at(prompt, slot), wanted)[slot] else None

    def _fits(self, prompt: _Prompt, landmarks: int, wanted: Slotwise) -> Slotwise:
        work = self._prefill(prompt, landmarks) + self._decode(prompt.request)
        return self._work.fits(prompt.rank, work, wanted)

    def _lightest(
        self,
        prompt: _Prompt,
        scores: npt.NDArray[np.float64],
        holders: Slotwise,
        fits: Slotwise,
        copies: int,
        landmarks: int,
    ) -> int:
        """Of the prefix's `copies` replicas, those that hold it before others, the one with the least work ahead; what a replica
        that does not hold it would have to compute counts as ahead.
        """
        chosen = _best(scores, holders, copies)
        chosen = np.append(chosen, _best(scores, fits & ~holders, copies - len(chosen)))
        ahead = self._work.ahead(prompt.rank)[chosen]
        ahead += np.where(holders[chosen], 0, self._prefill(prompt, 0) - self._prefill(prompt, landmarks))
        return int(chosen[ahead.argmin()])

    def _too_late(self, prompt: _Prompt, slot: int, least: int, now: float) -> bool:
        """Whether its deadline would pass at `slot`, as far as can be told, and it would be over earlier at `least`."""
        end = now + self._seconds_at(prompt, slot)
        return end > prompt.request.deadline and now + self._seconds_at(prompt, least) < end

    def _seconds_at(self, prompt: _Prompt, slot: int) -> float:
        work = self._prefill(prompt, self._known_at(prompt, slot)) + self._decode(prompt.request)
        return self._pace.seconds(self._work.ahead_at(prompt.rank, slot) + work / self._work.weight(slot))

    def _least(self, rank: int, usable: Slotwise) -> int:
        ahead = self._work.ahead(rank)
        ahead[~usable] = np.inf
        return int(ahead.argmin())

    def _known_at(self, prompt: _Prompt, slot: int) -> int:
        return next((landmarks for landmarks, mask in prompt.levels if mask >> slot & 1), 0)

    def _send(self, prompt: _Prompt, slot: int, now: float) -> None:
        request = prompt.request
        prefill, decode = self._prefill(prompt, self._known_at(prompt, slot)), self._decode(request)
        self._work.take(request.id, slot, prompt.rank, prefill, decode)
        self._sent[request.id] = _Sent(now, self._work.ahead_at(prompt.rank, slot))
        self._knowledge.learn(slot, prompt.marks, request.tenant)
        if request.session is not None:
            self._sessions.put(request.tenant, (request.tenant, request.session), self._slots.name(slot))
            self._sessions.trim()


def _best(scores: npt.NDArray[np.float64], among: Slotwise, count: int) -> npt.NDArray[np.intp]:
    """So many of these slots, those with the highest scores, in order of slots."""
    slots = np.flatnonzero(among)
    if count < len(slots):
        slots = np.sort(slots[np.argpartition(-scores[slots], count)[:count]])
    return slots


def _slots_of(mask: int, size: int) -> Slotwise:
    bits = np.frombuffer(mask.to_bytes(-(-size // 8), "little"), np.uint8)
    return np.unpackbits(bits, count=size, bitorder="little").astype(bool)
