"""A table of recurrent states whose "states" are the tokens that they come of: a wrong place changes what a row goes on from."""

from jaxserve.config.states import StatePlaces
from jaxserve.step.plan import NO_STATE, STATE_WORDS, Plan


class StateContents:
    """What is at each place: the tokens before it. Nothing is read by one row of a step and written by another."""

    def __init__(self, places: StatePlaces) -> None:
        self.places = places
        self.num_restored = 0  # rows that went on from another's state
        self._held: dict[int, list[int]] = {0: []}

    def submit(self, plan: Plan, sequences: list[list[int]], counts: list[int]) -> None:
        """A step whose rows' sequences have these tokens after it, of which the last so many are the row's."""
        assert plan.states is not None
        assert plan.states.shape == (plan.num_rows, STATE_WORDS + self.places.width)
        reads, writes = dict[int, int](), dict[int, tuple[int, list[int]]]()
        for row, (tokens, count) in enumerate(zip(sequences, counts, strict=True)):
            source, snapshot, after, *own = plan.states[row].tolist()
            source -= int(plan.kv_length[row]) - len(tokens)  # drafts that were refused since
            start = len(tokens) - count
            assert source < self.places.count
            assert self._held.get(source) == tokens[:start], f"row {row} does not go on from its first {start} tokens"
            self.num_restored += source >= self.places.first_snapshot
            reads[source] = row
            kept = {snapshot: start + after} if after else {}
            assert not after or self.places.first_snapshot <= snapshot < self.places.count
            assert 0 <= after <= count
            for back, place in enumerate(reversed(own)):
                if place != NO_STATE:
                    assert back < count, "a state of an earlier step is written again"
                    kept[place] = len(tokens) - back
            for place, length in kept.items():
                assert place not in writes, "two rows write to one place"
                writes[place] = row, tokens[:length]
        for place, (row, _) in writes.items():
            assert place > 0, "the empty state is written"
            assert reads.get(place, row) == row, "a row reads what another writes"
        self._held.update({place: tokens for place, (_, tokens) in writes.items()})
