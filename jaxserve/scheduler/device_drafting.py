"""Between the scheduler's sequences and a draft model, whose guesses only the device knows."""

from __future__ import annotations

from jaxserve.metrics.turn import SchedulerCounts
from jaxserve.scheduler.choice import StepChoice
from jaxserve.scheduler.containment import Containment
from jaxserve.scheduler.drafting import Drafting, HasRoom, take_back, with_drafts
from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.running import RunningSet
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.speculation import Speculation
from jaxserve.step.codes import guessed_token


class DeviceDrafting:
    """As `Drafting`: gives rows the guesses that the step before made for them, by their names in a plan.

    Args:
        num_slots: of the executor.
    """

    def __init__(self, guesses: DeviceGuesses, num_slots: int) -> None:
        self._guesses = guesses
        self._num_slots = num_slots

    def counted(self, counts: SchedulerCounts) -> SchedulerCounts:
        """With what became of drafts."""
        return with_drafts(counts, self._guesses.counts)

    def pays(self, host_seconds: float) -> bool:
        """No step waits for tokens: guesses follow those that the host does not know yet."""
        return False

    def give(self, choice: StepChoice, has_room: HasRoom, *, prompts: bool, limit: float) -> None:
        """Give drafts to the chosen decodes of a step: to each what was guessed behind its last token."""
        for sequence, count in choice.chosen.items():
            if count != 1 or not sequence.guessed or sequence.num_computed + 1 != sequence.num_tokens:
                continue
            most = min(sequence.guessed, sequence.most_drafts, choice.tokens.left)
            end = sequence.num_computed + 1
            if most <= 0 or not has_room(sequence, end + most):
                continue
            sequence.drafts = tuple(guessed_token(sequence.slot, place, self._num_slots) for place in range(most))
            choice.chosen[sequence] += most
            choice.tokens.left -= most

    def plan_guesses(self, choice: StepChoice, has_room: HasRoom) -> int | None:
        """How many tokens are guessed of every row behind the step (`Plan.guesses`)."""
        takes = [one for one, _ in choice.rows if _chooses(one) and _takes(one) and not one.unguided]
        guesses = self._guesses.guesses([one.request.id for one in takes], len(choice.rows))
        for sequence, _ in choice.rows:
            sequence.guessed = 0
            sequence.unguided |= guesses is None
        for sequence in takes:
            sequence.guessed = guesses or 0
            if guesses:  # a guess whose place has no page is as good as none; the row gets its token all the same
                has_room(sequence, min(sequence.num_computed + guesses, sequence.limit))
        return guesses

    def verified(self, sequence: Sequence, num_drafts: int, num_tokens: int) -> None:
        """A row chose tokens: take back what was reckoned with if not all of its drafts were right."""
        take_back(sequence, num_drafts, num_tokens)
        if num_drafts:
            self._guesses.verified(sequence.request.id, num_drafts, num_tokens - 1)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of decodes alone took so long."""
        self._guesses.observe(rows, tokens, seconds)

    def ended(self, sequence: Sequence) -> None:
        self._guesses.ended(sequence.request.id)


def drafting_of(
    speculation: Speculation | DeviceGuesses | None, running: RunningSet, num_slots: int, containment: Containment
) -> Drafting | DeviceDrafting:
    """By who guesses: the host, a draft model on the device, or nobody."""
    if isinstance(speculation, DeviceGuesses):
        return DeviceDrafting(speculation, num_slots)
    return Drafting(speculation, running, containment)


def _chooses(sequence: Sequence) -> bool:
    """Whether its row, which is in the step already, chooses a token."""
    return sequence.task.generates and sequence.num_computed == sequence.num_tokens + len(sequence.drafts)


def _takes(sequence: Sequence) -> bool:
    return sequence.constraint is None and sequence.request.params.max_draft_tokens != 0
