"""What a step's result says of its plan."""

from dataclasses import replace

import numpy as np

from jaxserve.step.plan import StepResult
from tests.support.plans import make_plan


def test_drafts_that_were_right() -> None:
    """One row with 2 of 3, one with none of 2, one without drafts, and one that does not sample."""
    plan = make_plan(([1, 2, 3, 4], 9, [1]), ([5, 6, 7], 9, [2]), ([8], 9, [3]), ([9], 9, [4]))
    drafted = replace(plan, num_drafts=np.array([3, 2, 0, 0], np.int32))
    tokens = np.zeros((4, 4), np.int32)
    assert StepResult(0, tokens, np.array([3, 1, 1, 0], np.int32)).num_accepted(drafted) == 2
    assert StepResult(0, tokens[:, :1], np.array([1, 1, 1, 0], np.int32)).num_accepted(plan) == 0
