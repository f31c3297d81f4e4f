"""Any order of events: a PrefixRouter's accounts, held against plain ones, and what it may never do."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxserve.routing.prefix_router import PrefixRouter
from jaxserve.routing.prefix_settings import PrefixSettings
from jaxserve.routing.router import ReplicaLoad
from jaxserve.types import ServiceClass
from tests.unit.routing.support import PAGE, pages, request

REPLICAS = st.sampled_from([f"r{number}" for number in range(6)])
PARTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=3)
NUMBERS = st.sampled_from([0, 4, 1000]) | st.integers(-(2**70), 2**70)  # replicas may say anything
SLACK, GRAIN = 0.25, 1000.0


class Routing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        bounds = {"most_landmarks": 64, "most_sessions": 8, "most_prefixes": 8}
        self.router = PrefixRouter(PrefixSettings(slack=SLACK, grain=GRAIN, **bounds))
        self.weights: dict[str, float] = {}
        self.running: dict[str, str] = {}
        self.most: dict[str, int] = {}  # work that a request can have at most
        self.number = 0
        self.now = 0.0

    @rule(replica=REPLICAS, weight=st.sampled_from([0.5, 1.0, 3.0]))
    def join(self, replica: str, weight: float) -> None:
        self.router.join(replica, weight)
        self.weights[replica] = weight

    @rule(replica=REPLICAS)
    def leave(self, replica: str) -> None:
        self.router.leave(replica)
        self.weights.pop(replica, None)
        self.running = {name: at for name, at in self.running.items() if at != replica}

    @rule(
        parts=PARTS,
        excluded=st.sets(REPLICAS, max_size=3),
        service_class=st.sampled_from(list(ServiceClass)),
        session=st.sampled_from([None, "s", "t"]),
        deadline=st.sampled_from([float("inf"), 0.0, 5.0]),
        output=st.integers(1, 300),
        again=st.booleans(),
    )
    def choose(
        self,
        parts: list[tuple[str, int]],
        excluded: set[str],
        service_class: ServiceClass,
        session: str | None,
        deadline: float,
        output: int,
        again: bool,
    ) -> None:
        name = str(self.number) if again and self.running else str(self.number + 1)
        self.number = int(name)
        self.running.pop(name, None)
        asked = request(
            name, *parts, service_class=service_class, session=session, deadline=self.now + deadline, output_tokens=output
        )
        before = {replica: self.router.work(replica) for replica in self.weights}
        chosen = self.router.choose(asked, self.now, excluded)
        candidates = set(self.weights) - excluded
        assert (chosen is None) == (not candidates)
        if chosen is None:
            return
        assert chosen in candidates
        self.running[name] = chosen
        self.most[name] = len(asked.pages) * PAGE + 1 + 2 * output
        self.check_bound(chosen, before, service_class, len(candidates) == len(self.weights))

    def check_bound(self, chosen: str, before: dict[str, int], service_class: ServiceClass, all_there: bool) -> None:
        """As a batch request sees it, which sees all work; where nobody is excluded, the least loaded has at most the mean."""
        if service_class is not ServiceClass.BATCH or not all_there:
            return
        work = {replica: self.router.work(replica) for replica in self.weights}
        share = self.weights[chosen] / sum(self.weights.values())
        added = work[chosen] - before.get(chosen, 0)
        bound = (1.0 + SLACK) * share * sum(work.values()) + GRAIN * self.weights[chosen]
        assert work[chosen] <= max(bound, share * (sum(work.values()) - added) + added) + 1e-6

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ended(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.router.ended(name, self.now)
        del self.running[name]

    @rule(number=st.integers(0, 40))
    def started(self, number: int) -> None:
        self.router.started(str(number), self.now)

    @rule(
        replica=REPLICAS,
        load=st.builds(
            ReplicaLoad,
            running=NUMBERS,
            waiting=NUMBERS,
            pages_total=NUMBERS,
            pages_free=NUMBERS,
            step_seconds=st.floats(allow_nan=True, allow_infinity=True),
        ),
    )
    def observe(self, replica: str, load: ReplicaLoad) -> None:
        self.router.observe(replica, load, self.now)

    @rule(replica=REPLICAS, parts=PARTS, event=st.sampled_from(["stored", "removed", "cleared"]))
    def said(self, replica: str, parts: list[tuple[str, int]], event: str) -> None:
        match event:
            case "stored":
                self.router.stored(replica, pages(*parts))
            case "removed":
                self.router.removed(replica, pages(*parts))
            case _:
                self.router.cleared(replica)

    @rule(seconds=st.sampled_from([0.1, 3.0, 500.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def accounts_are_of_what_runs(self) -> None:
        running: dict[str, list[str]] = defaultdict(list)
        for name, replica in self.running.items():
            running[replica].append(name)
        for replica in self.weights:
            work = self.router.work(replica)
            assert (work > 0) == bool(running[replica])
            assert work <= sum(self.most[name] for name in running[replica])

    @invariant()
    def nothing_grows_without_bound(self) -> None:
        router = self.router
        assert len(router._knowledge) <= 64
        assert len(router._knowledge._holders) <= 64
        assert len(router._sessions) <= 8
        assert len(router._branches) <= 8
        assert len(router._hot) <= 8
        assert router._sent.keys() == self.running.keys()

    def teardown(self) -> None:
        for name in self.running:
            self.router.ended(name, self.now)
        assert all(self.router.work(replica) == 0 for replica in self.weights)
        for replica in list(self.weights):
            self.router.leave(replica)
        assert len(self.router._knowledge) == len(self.router._knowledge._holders) == len(self.router._sent) == 0


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
