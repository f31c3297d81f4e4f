"""The net has no holes: whatever is broken in cache or scheduler here, the checks of the random operations notice."""

from collections import deque
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from jaxserve.cache import kv_cache
from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.page_pool import PagePool
from jaxserve.cache.prefix_hash import CacheNamespace, page_hash
from jaxserve.cache.swap import SwapSpace
from jaxserve.scheduler import constraints
from jaxserve.scheduler.admission import Deadlines
from jaxserve.scheduler.batching import Batcher
from jaxserve.scheduler.fairness import PrefillTokens
from jaxserve.scheduler.planner import Planner
from jaxserve.scheduler.preemption import Preempter, Reason
from jaxserve.scheduler.request import Status
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import MoveKind, PageMove
from jaxserve.step.rows import RowTable
from tests.support.plans import moved
from tests.support.scripted_grammars import ScriptedConstraint, ScriptedGrammars
from tests.support.scripted_operations import run_script

SEEDS = (*range(13), 24)


def one_reference_too_many(patch):
    share = PagePool.share

    def mutant(self, pages):
        pages = list(pages)
        share(self, pages)
        share(self, pages[:1])

    patch.setattr(PagePool, "share", mutant)


def one_reference_too_few(patch):
    def mutant(self, pages):
        for page in pages:
            if self._references[page] == 0:
                self._take_cached(page)
            self._references[page] = 1

    patch.setattr(PagePool, "share", mutant)


def a_page_is_never_freed(patch):
    release = PagePool.release
    patch.setattr(PagePool, "release", lambda self, pages: release(self, list(pages)[1:]))


def a_page_in_use_is_freed(patch):
    grow = KVCache.grow

    def mutant(self, sequence, num_tokens):
        before = len(sequence.pages)
        grown = grow(self, sequence, num_tokens)
        if before and len(sequence.pages) > before:
            self._pool.release(sequence.pages[:1])
        return grown

    patch.setattr(KVCache, "grow", mutant)


def a_page_is_freed_under_a_row_of_the_step(patch):
    """The victim of a preemption stays in the step that took its pages."""
    preempt = Preempter._preempt

    def mutant(self, choice, sequence, *why):
        count = choice.chosen.get(sequence, 0)
        preempt(self, choice, sequence, *why)
        if count:
            choice.chosen[sequence] = count

    patch.setattr(Preempter, "_preempt", mutant)


def a_page_of_another_row_is_in_the_table(patch):
    pages = RowTable.pages

    def mutant(self, slots):
        table = pages(self, slots).copy()
        table[0, 0] = table[-1, 0]
        return table

    patch.setattr(RowTable, "pages", mutant)


def the_salt_is_left_out_of_the_key(patch):
    root = CacheNamespace.root
    patch.setattr(CacheNamespace, "root", lambda self: root(replace(self, salt="")))


def a_hash_without_its_parent(patch):
    def mutant(self, hashes, root, tokens, count):
        for start in range(len(hashes) * self.page_size, count * self.page_size, self.page_size):
            hashes.append(page_hash(root, tokens[start : start + self.page_size]))

    patch.setattr(KVCache, "_extend", mutant)


def a_page_is_found_before_it_is_planned(patch):
    commit = KVCache.commit

    def mutant(self, sequence, tokens, num_computed):
        commit(self, sequence, tokens, len(sequence.pages) * self.page_size)

    patch.setattr(KVCache, "commit", mutant)


def a_copy_is_left_out(patch):
    plan = Planner.plan

    def mutant(self, chosen, moves, *more):
        return plan(self, chosen, tuple(move for move in moves if move.kind is not MoveKind.COPY), *more)

    patch.setattr(Planner, "plan", mutant)


def a_copy_goes_the_other_way(patch):
    plan = Planner.plan

    def mutant(self, chosen, moves, *more):
        turned = (PageMove(kind, to, page) if kind is MoveKind.COPY else PageMove(kind, page, to) for kind, page, to in moves)
        return plan(self, chosen, tuple(turned), *more)

    patch.setattr(Planner, "plan", mutant)


def swapped_pages_come_back_in_another_order(patch):
    plan = Planner.plan

    def mutant(self, chosen, moves, *more):
        pages = [move.destination for move in moves if move.kind is MoveKind.FROM_TIER]
        back = (move._replace(destination=pages.pop()) if move.kind is MoveKind.FROM_TIER else move for move in moves)
        return plan(self, chosen, tuple(back), *more)

    patch.setattr(Planner, "plan", mutant)


def swaps_of_a_step_without_rows_are_lost(patch):
    step = Batcher.step

    def mutant(self):
        choice = step(self)
        if not choice.rows:
            self._running.take_moves()
        return choice

    patch.setattr(Batcher, "step", mutant)


def swap_slots_are_never_given_back(patch):
    patch.setattr(SwapSpace, "give_back", lambda self, slots: None)


def computed_tokens_are_kept_over_a_preemption(patch):
    stop = RunningSet.stop

    def mutant(self, sequence):
        computed = sequence.num_computed
        stop(self, sequence)
        sequence.num_computed = computed

    patch.setattr(RunningSet, "stop", mutant)


def a_step_has_one_token_too_many(patch):
    start = PrefillTokens.__init__

    def mutant(self, policies, budget, *rest):
        start(self, policies, budget + 1, *rest)

    patch.setattr(PrefillTokens, "__init__", mutant)


def a_sibling_starts_in_the_step_that_computes_the_prompt(patch):
    advance = Batcher._advance

    def mutant(self, choice, sequence, count):
        advance(self, choice, sequence, count)
        if sequence in choice.computed:
            choice.computed.remove(sequence)
            self._waiting.put_back(self._waiting.release(sequence))

    def can_fork(self, choice, sequence):
        parent = sequence.parent
        ready = parent is not None and parent.status is Status.RUNNING and parent.num_computed >= parent.num_prompt
        return ready and sequence.num_output == 0

    patch.setattr(Batcher, "_advance", mutant)
    patch.setattr(Batcher, "_can_fork", can_fork)


def a_step_that_preempted_admits(patch):
    admit = Batcher._admit

    def mutant(self, choice, *, only_interactive):
        choice.preempted = False
        admit(self, choice, only_interactive=only_interactive)

    patch.setattr(Batcher, "_admit", mutant)


def a_cap_is_not_looked_at(patch):
    patch.setattr(Preempter, "within_cap", lambda self, sequence, num_tokens: True)


def deadlines_are_forgotten(patch):
    patch.setattr(Deadlines, "due", lambda self, now: iter(()))


def a_slot_is_given_back_twice(patch):
    give_back = RowTable.give_back

    def mutant(self, slot):
        give_back(self, slot)
        give_back(self, slot)

    patch.setattr(RowTable, "give_back", mutant)


def a_token_is_told_twice(patch):
    apply = Scheduler.apply

    def mutant(self, plan, result, seconds=None):
        updates = apply(self, plan, result, seconds)
        return updates + updates[-1:]

    patch.setattr(Scheduler, "apply", mutant)


def the_first_of_all_may_be_preempted(patch):
    make_room = Preempter.make_room

    def mutant(self, choice, sequence, num_tokens):
        first = self._running.sequences[0]
        if first is not sequence and first not in choice.settled:
            self._preempt(choice, first, Reason.PAGES, sequence)
        return make_room(self, choice, sequence, num_tokens)

    patch.setattr(Preempter, "make_room", mutant)


def what_is_to_be_scored_comes_from_the_cache(patch):
    match = RunningSet.match

    def mutant(self, sequence, *, fork):
        reads, sequence.reads = sequence.reads, ()
        found = match(self, sequence, fork=fork)
        sequence.reads = reads
        return found

    patch.setattr(RunningSet, "match", mutant)


def scoring_begins_anew_after_a_preemption(patch):
    start = RunningSet.start

    def mutant(self, sequence, found, *, fork, expected):
        if sequence.num_preemptions:
            sequence.num_read = max(0, sequence.request.params.prompt_logprobs_start - 1)
        start(self, sequence, found, fork=fork, expected=expected)

    patch.setattr(RunningSet, "start", mutant)


def a_prompt_that_is_only_scored_gets_a_token(patch):
    take = Scheduler._take_reading

    def mutant(self, sequence, reading, *, last):
        for update in take(self, sequence, reading, last=last):
            yield update if update.finish_reason is None else msgspec.structs.replace(update, token=1)

    patch.setattr(Scheduler, "_take_reading", mutant)


def windows_slide_while_a_step_is_planned(patch):
    """What a row of the step still reads is given to another one."""
    advance = Batcher._advance

    def mutant(self, choice, sequence, count):
        advance(self, choice, sequence, count)
        self._running.slide()

    patch.setattr(Batcher, "_advance", mutant)


def windows_slide_a_token_too_far(patch):
    slide = KVCache.slide
    patch.setattr(KVCache, "slide", lambda self, pages, num_computed: slide(self, pages, num_computed + 1))


def windows_never_slide(patch):
    patch.setattr(RunningSet, "slide", lambda self: None)


def pages_given_back_stay_in_the_table(patch):
    patch.setattr(RowTable, "drop_pages", lambda self, slot, places: None)


def the_first_page_that_is_seen_is_not_looked_for(patch):
    match = KVCache._match

    def mutant(self, hashes):
        reach = self._reach
        self._reach = {group: columns - 1 for group, columns in reach.items()}
        pages = match(self, hashes)
        self._reach = reach
        return pages

    patch.setattr(KVCache, "_match", mutant)


def groups_find_each_others_pages(patch):
    patch.setattr(kv_cache, "name_of", lambda digest, group: digest)


def a_fork_of_pages_that_were_given_back(patch):
    patch.setattr(KVCache, "can_fork", lambda self, parent, num_tokens: True)


def swapped_windows_come_back_a_column_early(patch):
    resume = KVCache.resume

    def mutant(self, sequence, num_computed):
        resumed = resume(self, sequence, num_computed)
        if 0 in sequence.pages:
            sequence.pages.append(sequence.pages.pop(0))
        return resumed

    patch.setattr(KVCache, "resume", mutant)


def a_first_chunk_is_not_reckoned_with(patch):
    taken = KVCache.pages_taken

    def mutant(self, match, num_tokens):
        return taken(self, match, num_tokens) - self.pages_for(self._max_chunk) // 2

    patch.setattr(KVCache, "pages_taken", mutant)


PREFIX, TENANT = "reads a page of another prefix", "of (ours|theirs|others) reads a page of"
NOT_SCORED = "what was to be scored was not, or twice"
COUNTS = "reference counts differ from the holders'"
MUTATIONS = {  # and what the checks say of each; None where they say nothing in words
    one_reference_too_many: COUNTS,
    one_reference_too_few: COUNTS,
    a_page_is_never_freed: "frees other pages than it tells",
    a_page_in_use_is_freed: COUNTS,
    a_page_is_freed_under_a_row_of_the_step: None,
    a_page_of_another_row_is_in_the_table: f"{PREFIX}|{TENANT}",
    the_salt_is_left_out_of_the_key: TENANT,
    a_hash_without_its_parent: PREFIX,
    a_page_is_found_before_it_is_planned: PREFIX,
    a_copy_is_left_out: f"{PREFIX}|{TENANT}|was never written",
    a_copy_goes_the_other_way: f"{PREFIX}|{TENANT}|was never written",
    swapped_pages_come_back_in_another_order: f"{PREFIX}|{TENANT}",
    swaps_of_a_step_without_rows_are_lost: f"{PREFIX}|{TENANT}|was never written",
    swap_slots_are_never_given_back: "taken swap slots differ",
    computed_tokens_are_kept_over_a_preemption: None,
    a_step_has_one_token_too_many: "more tokens than a step may have",
    a_sibling_starts_in_the_step_that_computes_the_prompt: f"{PREFIX}|{TENANT}|was never written",
    a_step_that_preempted_admits: "admitted in a step that preempted",
    a_cap_is_not_looked_at: "beyond its cap",
    deadlines_are_forgotten: "a deadline passed unnoticed|too late",
    a_slot_is_given_back_twice: None,
    a_token_is_told_twice: None,
    the_first_of_all_may_be_preempted: "the first of all is preempted",
    what_is_to_be_scored_comes_from_the_cache: NOT_SCORED,
    scoring_begins_anew_after_a_preemption: NOT_SCORED,
    a_prompt_that_is_only_scored_gets_a_token: None,
}


SLIDING = (
    *((seed, (7,)) for seed in range(9)),
    *((seed, (None, 6)) for seed in range(9)),
    *((seed, (3, 12)) for seed in range(6)),
)
WINDOW_MUTATIONS = {
    windows_slide_while_a_step_is_planned: f"{PREFIX}|{TENANT}|a token goes to the null page",
    windows_slide_a_token_too_far: f"{PREFIX}|{TENANT}|was never written",
    windows_never_slide: "a page is held that nobody sees|more pages than windows need",
    pages_given_back_stay_in_the_table: "a page is held that nobody sees",
    the_first_page_that_is_seen_is_not_looked_for: f"{PREFIX}|was never written",
    groups_find_each_others_pages: None,
    a_fork_of_pages_that_were_given_back: None,
    swapped_windows_come_back_a_column_early: None,
    a_first_chunk_is_not_reckoned_with: "its pages were promised|beyond its cap",
}


def masks_are_of_the_row_before(patch):
    fill = ScriptedGrammars.fill

    def mutant(self, rows, masks):
        errors = fill(self, rows, masks)
        masks[:] = np.roll(masks, 1, axis=0)
        return errors

    patch.setattr(ScriptedGrammars, "fill", mutant)


def masks_do_not_know_the_latest_token(patch):
    """As if they were made when the step is submitted."""
    accept = ScriptedConstraint.accept

    def mutant(self, token):
        self.now_allowed = partial(ScriptedConstraint.allowed, self, list(self._said))
        return accept(self, token)

    patch.setattr(ScriptedConstraint, "accept", mutant)


def a_forced_token_too_many(patch):
    forced = ScriptedConstraint.forced
    patch.setattr(ScriptedConstraint, "forced", lambda self: [*forced(self), 7])


def forced_tokens_come_in_another_order(patch):
    forced = constraints._forced_behind
    patch.setattr(constraints, "_forced_behind", lambda sequence: forced(sequence)[::-1])


def forced_tokens_are_computed_and_not_told(patch):
    patch.setattr(Scheduler, "_follow", lambda self, sequence: iter(()))


CONSTRAINED = range(8)
MASK_MUTATIONS = {
    masks_are_of_the_row_before: None,
    masks_do_not_know_the_latest_token: None,
    a_forced_token_too_many: None,
    forced_tokens_come_in_another_order: None,
    forced_tokens_are_computed_and_not_told: None,
}


def test_constrained_sequences_pass_and_are_forced():
    engines = [run_script(seed, grammars=True) for seed in CONSTRAINED]
    assert sum(len(checked.events) for checked in engines) > 50
    assert sum(checked.scheduler.counts().forced_tokens for checked in engines) > 200


@pytest.mark.parametrize(("mutate", "message"), MASK_MUTATIONS.items(), ids=[mutate.__name__ for mutate in MASK_MUTATIONS])
def test_a_mutation_of_masks_is_caught(mutate, message, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        deque((run_script(seed, grammars=True) for seed in CONSTRAINED), maxlen=0)


def test_unbroken_code_passes_and_meets_everything():
    engines = [run_script(seed) for seed in SEEDS]
    plans = [plan for checked in engines for plan in checked.executor.plans]
    assert sum(checked.num_operations for checked in engines) > 1000
    assert sum(len(checked.events) for checked in engines) > 50
    assert sum(event.swapped for checked in engines for event in checked.events) > 10
    assert sum(len(moved(plan, MoveKind.COPY)) for plan in plans) > 10
    assert sum(checked.cache.hit_tokens for checked in engines) > 200
    assert all(sum(getattr(checked, end) for checked in engines) > 10 for end in ("finished", "aborted", "refused", "failed"))


@pytest.mark.parametrize(("mutate", "message"), MUTATIONS.items(), ids=[mutate.__name__ for mutate in MUTATIONS])
def test_a_mutation_is_caught(mutate, message, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        deque(map(run_script, SEEDS), maxlen=0)


def test_windows_pass_and_meet_everything():
    engines = [run_script(seed, windows=windows) for seed, windows in SLIDING]
    plans = [plan for checked in engines for plan in checked.executor.plans]
    assert sum(len(checked.events) for checked in engines) > 50
    assert sum(event.swapped for checked in engines for event in checked.events) > 10
    assert sum(len(moved(plan, MoveKind.COPY)) for plan in plans) > 10
    assert sum(checked.cache.hit_tokens for checked in engines) > 200


@pytest.mark.parametrize(("mutate", "message"), WINDOW_MUTATIONS.items(), ids=[mutate.__name__ for mutate in WINDOW_MUTATIONS])
def test_a_mutation_of_windows_is_caught(mutate, message, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        deque((run_script(seed, windows=windows) for seed, windows in SLIDING), maxlen=0)
