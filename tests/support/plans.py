"""Plans by hand, for executors."""

from typing import Any

from jaxserve.sampling.options import NUM_LOGPROBS, TEMPERATURE
from jaxserve.step.example import Row, example_plan
from jaxserve.step.plan import Plan


def make_plan(*rows: Row, temperature: float = 0.0, num_logprobs: int = -1, **more: Any) -> Plan:
    """A plan of rows of (tokens computed, tokens in the cache after the step, pages)."""
    return example_plan(*rows, values={TEMPERATURE: temperature, NUM_LOGPROBS: num_logprobs}, **more)
