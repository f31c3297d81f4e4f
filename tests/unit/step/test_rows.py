"""Rows that stay the same from step to step."""

import numpy as np

from jaxserve.sampling.options import STANDARD
from jaxserve.scheduler.request import Sequence
from jaxserve.step.rows import RowTable
from tests.support.bench import request


def sequence(name, **params):
    return Sequence.from_request(request(name, 4, **params), 100)


def take(table, one):
    params = one.request.params
    one.slot = table.take(table.pack(one.row_source), one.num_prompt + params.min_tokens)


def test_a_sequence_that_comes_back_to_another_slot_is_found_there() -> None:
    table = RowTable(2, 4)
    first, second = sequence("a"), sequence("b")
    take(table, first)
    take(table, second)
    slots, names = table.select([first])
    assert (slots.tolist(), names) == ([0], ("a",))
    assert table.select([first])[0] is slots
    table.give_back(first.slot)
    table.give_back(second.slot)
    take(table, first)
    assert table.select([first])[0].tolist() == [1]


def test_pages_are_copied_again_when_one_came_or_went() -> None:
    table = RowTable(1, 4)
    one = sequence("a")
    take(table, one)
    slots, _ = table.select([one])
    table.set_pages(one.slot, [7])
    first = table.pages(slots)
    assert table.pages(slots) is first
    table.set_pages(one.slot, [7, 8])
    assert table.pages(slots).tolist() == [[7, 8]]
    table.drop_pages(one.slot, [0])
    assert table.pages(slots).tolist() == [[0, 8]]
    assert first.tolist() == [[7]]


def test_stop_tokens_are_suppressed_until_an_output_is_long_enough() -> None:
    table = RowTable(1, 4)
    one = sequence("a", min_tokens=2, eos=[9])
    take(table, one)
    slots, _ = table.select([one])
    words = [table.sampling(slots, np.array([length], np.int32)) for length in (4, 5, 6, 7)]
    suppressed = [STANDARD.column(row, "suppress")[0, 0] for row in words]
    assert suppressed == [9, 9, -1, -1]
    assert table.sampling(slots, np.array([7], np.int32)) is table.sampling(slots, np.array([8], np.int32))
