"""Between the scheduler's sequences and `speculation`, which knows texts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from jaxserve.metrics.turn import SchedulerCounts
from jaxserve.scheduler.choice import StepChoice
from jaxserve.scheduler.containment import Containment
from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.running import RunningSet
from jaxserve.speculation.speculation import Row, Speculation, SpeculationCounts

HasRoom = Callable[[Sequence, int], bool]
"""Gets a sequence pages for so many tokens, if there are any without anybody giving way."""


class Drafting:
    """Gives rows of a step drafts, and takes back those that were wrong.

    Args:
        speculation: guesses; None if nobody does.
        containment: takes the sequences whose state cannot be read.
    """

    def __init__(self, speculation: Speculation | None, running: RunningSet, containment: Containment | None = None) -> None:
        self._speculation = speculation
        self._running = running
        self._containment = containment or Containment()

    def counted(self, counts: SchedulerCounts) -> SchedulerCounts:
        """With what became of drafts."""
        if self._speculation is None:
            return counts
        return with_drafts(counts, self._speculation.counts)

    def pays(self, host_seconds: float) -> bool:
        """Whether the decodes in flight should be known before the next step is planned; the host takes so long between."""
        if self._speculation is None:
            return False
        self._speculation.observe_host(host_seconds)
        decodes = [one for one in self._running.sequences if one.num_output and one.num_computed >= one.num_prompt]
        rows = self._rows(self._speculation, decodes)
        return bool(rows) and self._speculation.pays(rows, len(decodes))

    def give(self, choice: StepChoice, has_room: HasRoom, *, prompts: bool, limit: float) -> None:
        """Give drafts to the chosen decodes of a step.

        Args:
            choice: its rows, a token each.
            has_room: gets a sequence pages for so many tokens, if there are any.
            prompts: whether prompts would take the tokens instead.
            limit: seconds that a step of decodes may take; 0 for any.
        """
        if self._speculation is None:
            return
        chosen = {one.request.id: one for one, count in choice.chosen.items() if count == 1 and _is_known(one)}
        rows = self._rows(self._speculation, chosen.values())
        if not rows:
            return
        drafts = self._speculation.drafts(rows, len(choice.chosen), room=choice.tokens.left, prompts=prompts, limit=limit)
        for name, tokens in drafts.items():
            sequence = chosen[name]
            if has_room(sequence, sequence.num_computed + 1 + len(tokens)):
                sequence.drafts = tokens
                choice.chosen[sequence] += len(tokens)
                choice.tokens.left -= len(tokens)

    def plan_guesses(self, choice: StepChoice, has_room: HasRoom) -> int | None:
        """Nothing is guessed on the device (`Plan.guesses`)."""
        return None

    def verified(self, sequence: Sequence, num_drafts: int, num_tokens: int) -> None:
        """A row chose tokens: take back what was reckoned with if not all of its drafts were right."""
        take_back(sequence, num_drafts, num_tokens)
        if num_drafts and self._speculation is not None:
            self._speculation.verified(num_drafts, num_tokens - 1)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of decodes alone took so long."""
        if self._speculation is not None:
            self._speculation.observe(rows, tokens, seconds)

    def _rows(self, speculation: Speculation, sequences: Iterable[Sequence]) -> list[Row]:
        rows = []
        for sequence in sequences:
            with self._containment.of(sequence, "drafting"):
                if (row := _row(speculation, sequence)) is not None:
                    rows.append(row)
        return rows

    def ended(self, sequence: Sequence) -> None:
        if self._speculation is not None:
            self._speculation.ended(sequence.request.id, sequence.tokens)


def with_drafts(counts: SchedulerCounts, drafts: SpeculationCounts) -> SchedulerCounts:
    """The scheduler's counts with what became of drafts."""
    return replace(
        counts,
        spec_decode_num_drafts=drafts.drafts,
        spec_decode_num_draft_tokens=drafts.draft_tokens,
        spec_decode_num_accepted_tokens=drafts.accepted_tokens,
        spec_decode_seconds=drafts.seconds,
        accepted_at=drafts.accepted_at,
        method=drafts.method,
    )


def take_back(sequence: Sequence, num_drafts: int, num_tokens: int) -> None:
    """A row with drafts chose so many tokens: what was reckoned with besides did not come."""
    refused = 1 + num_drafts - num_tokens
    sequence.num_drafts -= num_drafts
    sequence.num_pending -= refused
    if sequence.num_pending == num_tokens:  # nothing was planned since, which the devices would put right
        sequence.pages.state.refused = refused
    if sequence.num_computed:  # else it was preempted meanwhile
        sequence.num_computed -= refused


def _is_known(sequence: Sequence) -> bool:
    """Whether all its tokens are known, and all but the last are computed."""
    return not sequence.num_pending and sequence.num_computed + 1 == len(sequence.tokens)


def _row(speculation: Speculation, sequence: Sequence) -> Row | None:
    """What is guessed of a sequence; None if it may have no drafts."""
    most = min(speculation.max_drafts, sequence.most_drafts)
    if most <= 0 or sequence.forced:
        return None
    sure = _sure(sequence)
    if len(sure) > most and not sequence.chooses_forced:
        return None  # without drafts all but the first of them are computed as one chunk (`constraints`)
    request = sequence.request
    readers = f"{request.tenant}/{request.cache_root.hex()}"  # who may share cached prefixes may share what is learned
    return Row(request.id, readers, sequence.num_prompt, sequence.tokens, most, sequence.constraint, sure)


def _sure(sequence: Sequence) -> tuple[int, ...]:
    """Tokens that must come behind those in flight."""
    return () if sequence.constraint is None else tuple(sequence.constraint.forced()[sequence.num_pending :])
