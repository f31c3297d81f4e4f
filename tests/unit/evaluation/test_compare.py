"""Differences between results: by how much, how sure, and what is said where nothing tells."""

from __future__ import annotations

import math
import statistics
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.evaluation.differences import differences, unlike
from jaxserve.evaluation.pairs import pairs, sign_flip_p
from jaxserve.evaluation.result import Result
from tests.unit.evaluation.made_results import made_result

BASE = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
OTHER = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def binomial_p(better: int, worse: int) -> float:
    """Both tails of the sign test: McNemar's exact p."""
    count = better + worse
    far = [k for k in range(count + 1) if abs(2 * k - count) >= abs(better - worse)]
    return float(sum(math.comb(count, k) for k in far) / 2**count)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 0), (6, 1), (4, 4), (30, 12), (0, 40), (900, 1000)])
def test_right_and_wrong_answers_get_mcnemars_exact_p(better: int, worse: int) -> None:
    parts = np.array([0.01] * better + [-0.01] * worse + [0.0] * 7)
    assert sign_flip_p(parts) == pytest.approx(binomial_p(better, worse))


@pytest.mark.parametrize(("count", "worse"), [(20, 5), (2400, 19)])  # drawn, and from the normal distribution
def test_many_documents_of_different_weight(count: int, worse: int) -> None:
    """Against the exact share, by the distribution of all sums of whole numbers."""
    parts = np.random.default_rng(0).integers(1, 6, count) * np.where(np.arange(count) % 40 < worse, -1, 1)
    most = int(np.abs(parts).sum())
    shares = np.zeros(2 * most + 1)  # of sign patterns, by their sum from -most to most
    shares[most] = 1.0
    for size in np.abs(parts).tolist():
        shares = (np.roll(shares, size) + np.roll(shares, -size)) / 2
    exact = float(shares[np.abs(np.arange(-most, most + 1)) >= abs(int(parts.sum()))].sum())
    assert 0.001 < exact < 0.5
    assert sign_flip_p(parts / 7.0) == pytest.approx(exact, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=1, max_size=8))
def test_p_is_the_share_of_sign_patterns(parts: list[float]) -> None:
    sums = [
        abs(sum(sign * part for sign, part in zip(signs, parts, strict=True))) for signs in product((-1, 1), repeat=len(parts))
    ]
    least = abs(sum(parts)) - 1e-9
    assert sign_flip_p(np.array(parts)) == pytest.approx(sum(entry >= least for entry in sums) / len(sums))


def test_a_share_is_compared_document_by_document() -> None:
    first, second = made_result("a", right={"sums": BASE}), made_result("b", right={"sums": OTHER})
    (entry,) = differences(first, second)
    changes = [new - old for old, new in zip(BASE, OTHER, strict=True)]
    assert entry.paired
    assert entry.value == pytest.approx(statistics.fmean(changes))
    assert entry.stderr == pytest.approx(statistics.stdev(changes) / math.sqrt(len(changes)))
    assert entry.p == pytest.approx(binomial_p(3, 1))
    assert not entry.significant


def test_equal_models_do_not_differ() -> None:
    (entry,) = differences(made_result("a", right={"sums": BASE}), made_result("b", right={"sums": BASE}))
    assert (entry.value, entry.stderr, entry.p, entry.paired) == (0.0, 0.0, 1.0, True)


def test_bits_per_byte_and_perplexity_of_texts() -> None:
    sizes = [100, 200, 50, 400, 80, 120]
    old = [(-1.5 * size, size) for size in sizes]
    new = [(-1.4 * size, size) for size in sizes]
    bits, perplexity = differences(made_result("a", texts={"texts": old}), made_result("b", texts={"texts": new}))
    assert bits.value == pytest.approx(-0.1 / math.log(2))
    assert bits.stderr == pytest.approx(0.0, abs=1e-9)  # each text changed by the same share of its bytes
    assert perplexity.value == pytest.approx(math.exp(1.4) - math.exp(1.5))
    assert bits.p == perplexity.p == pytest.approx(2 / 2**6)  # all six better: one of 64 patterns, and its mirror image
    assert bits.significant


def test_standard_error_of_a_ratio() -> None:
    """Against many evaluations, each of texts drawn anew."""
    dice = np.random.default_rng(0)

    def drawn() -> tuple[Result, Result]:
        sizes = dice.integers(50, 400, 60)
        gains = 0.1 * sizes + 0.3 * np.sqrt(sizes) * dice.standard_normal(60)
        old = [(-1.5 * size, int(size)) for size in sizes]
        new = [(score + gain, size) for (score, size), gain in zip(old, gains, strict=True)]
        return made_result("a", texts={"t": old}), made_result("b", texts={"t": new})

    made = [drawn() for _ in range(300)]
    for metric in ("bits_per_byte,none", "byte_perplexity,none"):
        found = [(pairs(*two, "t", metric), [result.harness["results"]["t"][metric] for result in two]) for two in made]
        values = [after - before for _, (before, after) in found]
        errors = [entry.stderr() or 0.0 for entry, _ in found if entry is not None]
        assert len(errors) == len(made)
        assert statistics.fmean(errors) == pytest.approx(statistics.stdev(values), rel=0.15)


def test_other_documents_are_compared_by_their_standard_errors() -> None:
    first, second = made_result("a", right={"sums": BASE}), made_result("b", right={"sums": OTHER}, documents="others")
    (entry,) = differences(first, second)
    errors = [statistics.stdev(answers) / math.sqrt(8) for answers in (BASE, OTHER)]
    assert not entry.paired
    assert entry.stderr == pytest.approx(math.hypot(*errors))
    assert entry.p == pytest.approx(2 * (1 - statistics.NormalDist().cdf(0.25 / math.hypot(*errors))))


def test_nothing_is_said_where_nothing_tells() -> None:
    texts = {"texts": [(-100.0, 50), (-120.0, 70)]}
    for first, second in (
        (made_result("a", texts=texts), made_result("b", texts=texts, documents="others")),  # no standard errors
        (made_result("a", right={"sums": [1.0, 1.0]}), made_result("b", right={"sums": [0.0, 0.0]}, documents="others")),
    ):
        for entry in differences(first, second):
            assert (entry.p, entry.paired, entry.significant) == (None, False, False)


def test_one_document_says_nothing_of_how_they_vary() -> None:
    (entry,) = differences(made_result("a", right={"sums": [0.0]}), made_result("b", right={"sums": [1.0]}))
    assert (entry.value, entry.stderr, entry.p) == (1.0, None, 1.0)


def test_a_metric_that_is_no_mean_is_not_compared_by_document() -> None:
    first, second = made_result("a", right={"sums": BASE}), made_result("b", right={"sums": OTHER})
    second.harness["results"]["sums"]["acc,none"] = 0.5  # a median, say
    (entry,) = differences(first, second)
    assert not entry.paired


@pytest.mark.parametrize("by_size", [False, True])
def test_a_group_is_compared_by_the_documents_of_all_its_tasks(by_size: bool) -> None:
    small, large = [0.0, 1.0], [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    groups = {"all": ["small", "large"]}
    first = made_result("a", right={"small": [0.0, 0.0], "large": [0.0] * 6}, groups=groups)
    second = made_result("b", right={"small": small, "large": large}, groups=groups)
    if by_size:
        second.harness["results"]["all"]["acc,none"] = statistics.fmean(small + large)
    entry = {entry.score.task: entry for entry in differences(first, second)}["all"]
    weights = (0.25, 0.75) if by_size else (0.5, 0.5)
    errors = [
        weight * statistics.stdev(answers) / math.sqrt(len(answers))
        for weight, answers in zip(weights, (small, large), strict=True)
    ]
    assert entry.paired
    assert entry.stderr == pytest.approx(math.hypot(*errors))
    assert entry.p == pytest.approx(2 / 2**5)


def test_a_group_of_texts_is_compared_in_its_own_unit() -> None:
    texts = [{"one": [(-110.0, 100), (-190.0, 200)], "two": [(-300.0, 250), (-90.0, 100)]}]
    texts.append({"one": [(-100.0, 100), (-185.0, 200)], "two": [(-290.0, 250), (-70.0, 100)]})
    made = [made_result(name, texts=listed) for name, listed in zip("ab", texts, strict=True)]
    for result in made:
        results = result.harness["results"]
        results["all"] = {"bits_per_byte,none": statistics.fmean(results[task]["bits_per_byte,none"] for task in ("one", "two"))}
        result.harness["group_subtasks"]["all"] = ["one", "two"]
    entry = {entry.score.key: entry for entry in differences(*made)}
    errors = [entry[task, "bits_per_byte,none"].stderr or 0.0 for task in ("one", "two")]
    assert entry["all", "bits_per_byte,none"].stderr == pytest.approx(math.hypot(*errors) / 2)
    assert entry["all", "bits_per_byte,none"].p == pytest.approx(2 / 2**4)


def test_a_task_that_only_one_has_is_no_difference() -> None:
    first, second = made_result("a", right={"sums": BASE}), made_result("b", right={"words": BASE})
    (entry,) = differences(first, second)
    assert (entry.base, entry.value, entry.p) == (None, None, None)


def test_settings_that_differ_are_told() -> None:
    first, second = made_result("a", right={"sums": BASE}), made_result("b", right={"sums": BASE}, limit=10)
    assert unlike([first, first]) == []
    assert unlike([first, second]) == ["limit differs: None, 10"]
    second = made_result("b", right={"sums": BASE})
    second.harness["n-shot"]["sums"], second.harness["versions"]["sums"] = 5, 2.0
    second.header["versions"]["lm_eval"] = "0.4.9"
    assert unlike([first, second]) == [
        "sums: the task's version differs: 1.0, 2.0",
        "sums: the number of examples differs: 0, 5",
        "lm-eval's version differs: 0.4.13, 0.4.9",
    ]
