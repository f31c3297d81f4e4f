"""Speculation as a simulation plays it: the product's decisions, with acceptance that is drawn."""

import json
from typing import Any

import numpy as np
import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.drafts import Synthetic, parse_speculation
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import replica_spec, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.step.buckets import BucketGrid
from tests.unit.simulation.support import scenario

LIKELY = [0.8, 0.64, 0.512, 0.4096]  # each right with 0.8 if those before it are
NEVER = [0.0] * 4
OF_A_MODEL = {"method": "draft_model", "model": "llama-3-8b"}


def speculative(rates: list[float] | None, **more: Any) -> str | None:
    if rates is None:
        return None
    given = {"method": "ngram", "num_speculative_tokens": len(rates), "synthetic_acceptance_rates": rates}
    return json.dumps({**given, **more})


def run(
    rates: list[float] | None, rows: int, *, replica: dict[str, Any] | None = None, of: dict[str, Any] | None = None
) -> Report:
    """So many rows that are always full of answers of about 256 tokens."""
    plan = scenario(
        replica={
            "model": "llama-3-8b",
            "host_us": 500.0,
            "speculative_config": speculative(rates, **(of or {})),
            **(replica or {}),
        },
        scheduler={"max_num_seqs": rows, "max_num_batched_tokens": max(512, 2 * rows), "max_waiting": 10_000},
        requests=2 * rows,
        rate=1e4,
        prompt_tokens=64,
        prompt_sigma=0.0,
        output_tokens=256,
        output_sigma=0.3,
    )
    return report(plan, simulate(plan))


def test_few_rows_get_as_many_tokens_a_step_as_are_right() -> None:
    """One row: a step of 5 tokens reads the same weights as one of 1, and the device waits for the host before it."""
    plain, drafted = run(None, 1), run(LIKELY, 1)
    expected = 1 + sum(LIKELY)
    assert drafted.engines.tokens_a_row == pytest.approx(expected, rel=0.1)
    host_s, step_s = 500e-6, plain.all.itl.p50
    assert drafted.all.itl.mean == pytest.approx((step_s + host_s) / expected, rel=0.15)
    assert drafted.engines.accepted_tokens < drafted.engines.draft_tokens
    assert drafted.engines.tokens_recomputed == plain.engines.tokens_recomputed == 0


def test_drafts_that_are_never_right_are_given_up() -> None:
    plain, drafted = run(None, 4), run(NEVER, 4)
    assert drafted.engines.accepted_tokens == 0
    assert 0 < drafted.engines.draft_tokens < 0.05 * drafted.all.output_tokens_per_s * drafted.seconds
    assert drafted.all.output_tokens_per_s > 0.98 * plain.all.output_tokens_per_s


@pytest.mark.parametrize("rows", [32, pytest.param(96, marks=pytest.mark.extended)])
def test_no_number_of_rows_is_slower_for_it(rows: int) -> None:
    plain = run(None, rows).all.output_tokens_per_s
    for rates in (NEVER, [0.5, 0.25, 0.125, 0.0625], LIKELY):
        assert run(rates, rows).all.output_tokens_per_s > 0.97 * plain, rates


def test_a_draft_model_takes_time_and_memory() -> None:
    """Its weights and its part of pages are gone, and every guess is a step of its own."""
    hosts: dict[str, Any] = {"model": "llama-3-70b", "tp": 8, "weights": "fp8"}
    plain, drafted = run(None, 1, replica=hosts), run(LIKELY, 1, replica=hosts, of=OF_A_MODEL)
    assert drafted.engines.tokens_a_row == pytest.approx(1 + sum(LIKELY), rel=0.1)
    assert 0.2 < drafted.engines.draft_share < 0.7
    assert drafted.all.itl.mean < plain.all.itl.mean
    assert drafted.engines.tokens_recomputed == 0, "places of refused guesses are no tokens that were lost"
    with_draft = ReplicaConfig(**hosts, speculative_config=speculative(LIKELY, **OF_A_MODEL))
    pages = replica_spec(ReplicaConfig(**hosts), SchedulerConfig()).limits.num_pages
    spec = replica_spec(with_draft, SchedulerConfig())
    assert spec.layout.draft is not None
    held = spec.layout.draft.weight_bytes_device
    a_page, own = 16 * 80 * 2 * 128 * 2, 16 * 32 * 2 * 128 * 2  # one KV head a GPU, of the target's 80 layers and the draft's 32
    assert spec.limits.num_pages == pytest.approx((pages * a_page - held) / (a_page + own), abs=2)


def test_a_verify_step_is_padded_to_all_drafts() -> None:
    spec = replica_spec(ReplicaConfig(), SchedulerConfig())
    grid = BucketGrid.make(max_rows=8, max_tokens=64, min_rows=1, fine=True).with_drafts(4)
    costs = CostModel(spec.layout, Calibration(compute=1.0, attention=1.0, launch_s=0.0), grid)
    lengths = np.array([100, 100], np.int64)
    counts = np.array([3, 1], np.int64)
    step = costs.cost(counts, lengths, counts - 1)
    weights = sum(part.count for part in spec.layout.shape.parts if part.multiplied and part.use != "row")
    seen = (98 + 99 + 100 + 100) * 32
    assert step.linear == pytest.approx(2 * 10 * weights / 989e12, rel=1e-9), "2 rows of 5 tokens and 5 choices each"
    assert step.attention == pytest.approx(seen * 4 * 32 * 128 / 989e12, rel=1e-9)


def test_rates_are_those_that_were_asked_for() -> None:
    synthetic = Synthetic(LIKELY, "0")
    drawn = np.array([synthetic.right(4) for _ in range(20_000)])
    for place, rate in enumerate(LIKELY):
        assert (drawn > place).mean() == pytest.approx(rate, abs=0.015)
    assert {Synthetic([1.0, 1.0], "0").right(2), Synthetic([1.0, 1.0], "1").right(1)} == {2, 1}


@pytest.mark.parametrize(
    ("length", "rates"), [(2.6, (1.0, 0.6, 0.0)), (1.0, (0.0, 0.0, 0.0)), (4.0, (1.0, 1.0, 1.0)), (2, (1.0, 0.0, 0.0))]
)
def test_a_mean_length(length: float, rates: tuple[float, ...]) -> None:
    given = {"method": "suffix", "num_speculative_tokens": 3, "synthetic_acceptance_length": length}
    played = parse_speculation(json.dumps(given))
    assert played is not None
    assert played.rates == pytest.approx(rates)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "synthetic_acceptance_rates or synthetic_acceptance_length must be given"),
        ({"synthetic_acceptance_rates": [1.0, 0.5], "synthetic_acceptance_length": 2.0}, "and not both"),
        ({"synthetic_acceptance_rates": [0.5]}, "a list of 2 numbers from 0 to 1, got \\[0.5\\]"),
        ({"synthetic_acceptance_rates": [0.5, 0.6]}, "must not rise"),
        ({"synthetic_acceptance_rates": [1.5, 0.6]}, "from 0 to 1"),
        ({"synthetic_acceptance_length": 3.5}, "from 1 to 3, got 3.5"),
        ({"synthetic_acceptance_length": True}, "from 1 to 3, got True"),
        ({"synthetic_acceptance_length": 2.0, "rejection_sample_method": "block"}, "'synthetic' in a simulation, got 'block'"),
        ({"synthetic_acceptance_length": 2.0, "quantization": "fp8"}, "quantization is not taken"),
    ],
)
def test_what_cannot_be(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ReplicaConfig(speculative_config=json.dumps({"method": "ngram", "num_speculative_tokens": 2, **more}))


def test_nobody_guesses() -> None:
    assert parse_speculation(None) is None
    assert parse_speculation('{"method": "none"}') is None


def test_a_draft_must_have_the_targets_tokens() -> None:
    given = speculative(LIKELY, method="draft_model", model="mistral-7b")
    with pytest.raises(ConfigError, match="the draft has 32000 tokens, the target 128256"):
        replica_spec(ReplicaConfig(speculative_config=given), SchedulerConfig())
