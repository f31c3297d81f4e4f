"""The tests' own executor moves pages in the order that plans promise, and notices what a plan may not do."""

import pytest

from tests.support.hash_executor import UNWRITTEN, HashExecutor, next_token
from tests.support.plans import copied, make_plan, swapped_in, swapped_out


def executor(**options):
    return HashExecutor(num_pages=8, page_size=2, max_num_seqs=2, **options)


def test_pages_go_out_come_back_and_are_copied_before_the_step_writes():
    device = executor(swap_slots=2)
    device.pages[1], device.pages[2] = [5, 6], [7, 8]
    moves = swapped_out((1, 0), (2, 1)) + swapped_in((1, 1), (0, 2)) + copied((1, 3), (2, 1), (3, 2))
    handle = device.submit(make_plan(([9], 3, [3, 2]), moves=moves))
    assert device.pages[[1, 2, 3]].tolist() == [[5, 6], [9, 8], [7, 8]]
    assert handle.result().tokens.tolist() == [[next_token([7, 8, 9])]]


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (swapped_in((0, 1)), "a swap slot is read before it is written"),
        (swapped_in((0, 1)) + swapped_out((1, 0)), "a swap slot is read before it is written"),
        (swapped_out((1, 0)) + swapped_in((0, 1), (0, 2)), "a swap slot is read before it is written"),
        (swapped_out((1, 2)), "no such swap slot"),
        (swapped_out((0, 1)), "the null page is swapped"),
        (swapped_out((1, 1)) + swapped_in((1, 0)), "a swapped page goes to the null page"),
        (copied((1, 0)), "the null page is copied"),
    ],
)
def test_what_a_plan_may_not_move(moves, message):
    with pytest.raises(AssertionError, match=message):
        executor(swap_slots=2).submit(make_plan(([9], 1, [3]), moves=moves))


def test_a_copy_of_what_was_never_written_is_noticed_when_it_is_read():
    device = executor()
    with pytest.raises(AssertionError, match="a page is read before it is written"):
        device.submit(make_plan(([9], 3, [3, 4]), moves=copied((1, 3))))
    assert device.pages[3].tolist() == [UNWRITTEN] * 2


def test_a_poisoned_row_has_no_token_and_leaves_a_valid_one_for_the_next_step():
    device = executor(poison=9)
    assert device.submit(make_plan(([9], 1, [3]))).result().tokens.tolist() == [[-1]]
    assert device.last[0] == 0


def test_capabilities_tell_the_swap_space():
    limits = executor(swap_slots=3, swap_page_seconds=0.25).capabilities()
    assert (limits.num_pages, limits.swap_slots, limits.swap_page_seconds) == (8, 3, 0.25)
