"""The tests' own executor moves pages in the order that plans promise, and notices what a plan may not do."""

import pytest

from tests.support.hash_executor import UNWRITTEN, HashExecutor, next_token
from tests.support.plans import make_plan


def executor(**options):
    return HashExecutor(num_pages=8, page_size=2, max_num_seqs=2, **options)


def test_pages_go_out_come_back_and_are_copied_before_the_step_writes():
    device = executor(swap_places=2)
    device.pages[1], device.pages[2] = [5, 6], [7, 8]
    moves = {"swap_out": ((1, 0), (2, 1)), "swap_in": ((1, 1), (0, 2)), "copies": ((1, 2), (2, 1), (1, 3))}
    handle = device.submit(make_plan(([9], 3, [3, 2]), **moves))
    assert device.pages[[1, 2, 3]].tolist() == [[5, 6], [9, 8], [7, 8]]
    assert handle.result().tokens.tolist() == [next_token([7, 8, 9])]


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ({"swap_in": ((0, 1),)}, "a place is read before it is written"),
        ({"swap_out": ((1, 0),), "swap_in": ((0, 1), (0, 2))}, "a place is read before it is written"),
        ({"swap_out": ((1, 2),)}, "no such place"),
        ({"swap_out": ((0, 1),)}, "the null page is swapped"),
        ({"swap_out": ((1, 1),), "swap_in": ((1, 0),)}, "a swapped page goes to the null page"),
        ({"copies": ((1, 3), (2, 3))}, "two pages are copied to the same one"),
        ({"copies": ((1, 0),)}, "the null page is copied"),
    ],
)
def test_what_a_plan_may_not_move(moves, message):
    with pytest.raises(AssertionError, match=message):
        executor(swap_places=2).submit(make_plan(([9], 1, [3]), **moves))


def test_a_copy_of_what_was_never_written_is_noticed_when_it_is_read():
    device = executor()
    with pytest.raises(AssertionError, match="a page is read before it is written"):
        device.submit(make_plan(([9], 3, [3, 4]), copies=((1, 3),)))
    assert device.pages[3].tolist() == [UNWRITTEN] * 2


def test_a_poisoned_row_has_no_token_and_leaves_a_valid_one_for_the_next_step():
    device = executor(poison=9)
    assert device.submit(make_plan(([9], 1, [3]))).result().tokens.tolist() == [-1]
    assert device.last[0] == 0


def test_capabilities_tell_the_swap_space():
    limits = executor(swap_places=3, swap_page_seconds=0.25).capabilities()
    assert (limits.num_pages, limits.swap_places, limits.swap_page_seconds) == (8, 3, 0.25)
