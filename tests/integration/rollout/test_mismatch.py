"""Differences of log-probabilities against plain loops, and the command that shows them."""

import importlib.util
import json
import math

import numpy as np
import pytest

from jaxserve import verify
from jaxserve.rollout.mismatch import Mismatch, by_position, overall
from tests.golden.reading import read_golden
from tests.support.tiers import tiered

SMALL = ["--prompts", "3", "--prompt-tokens", "9", "--max-tokens", "10"]
ENGINE = ["--max-model-len", "48", "--max-num-seqs", "2", "--max-num-batched-tokens", "8", "--page-size", "4"]


def test_figures_against_a_loop():
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal(length), rng.standard_normal(length)) for length in (5, 3, 7)]
    parts = by_position(pairs, 3)
    assert list(parts) == ["0-2", "3-5", "6-6"]
    for first, part in zip((0, 3, 6), parts.values(), strict=True):
        differences = [b - a for one, other in pairs for a, b in list(zip(one, other, strict=True))[first : first + 3]]
        assert part.tokens == len(differences)
        assert part.max_abs == pytest.approx(max(map(abs, differences)))
        assert part.mean_abs == pytest.approx(sum(map(abs, differences)) / len(differences))
        assert part.k1 == pytest.approx(-sum(differences) / len(differences))
        assert part.k3 == pytest.approx(sum(math.exp(each) - 1 - each for each in differences) / len(differences))
    assert overall(pairs).tokens == 15
    assert overall(pairs).max_abs == max(part.max_abs for part in parts.values())


def test_estimates_are_those_of_the_divergence_of_two_distributions():
    """Weighted by the probabilities that samples would come with, the estimates are the divergence itself."""
    engine, trainer = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    samples = np.repeat(np.arange(3), (engine * 1000).astype(int))
    mismatch = Mismatch.of(np.log(engine)[samples], np.log(trainer)[samples])
    divergence = (engine * np.log(engine / trainer)).sum()
    assert mismatch.k1 == pytest.approx(divergence)
    assert mismatch.k3 == pytest.approx(divergence)


# Each model and each dtype once: experts in float32, whose limit is the sharp one.
@pytest.mark.parametrize(
    ("name", "dtype", "limit"),
    tiered(
        [
            ("llama-tied", "float32", 1e-4),
            ("llama-tied", "bfloat16", 0.5),
            ("mixtral-full", "float32", 1e-4),
            ("mixtral-full", "bfloat16", 0.5),
        ],
        {("llama-tied", "bfloat16", 0.5), ("mixtral-full", "float32", 1e-4)},
    ),
)
def test_samples_are_as_likely_as_a_trainer_finds_them(name, dtype, limit, tmp_path, capsys):
    path = tmp_path / "figures.json"
    directory = str(read_golden(name).directory)
    arguments = ["logprobs", directory, "--dtype", dtype, *SMALL, *ENGINE, "--temperature", "0.7", "--json", str(path)]
    assert verify.main([*arguments, "--limit", str(limit)]) == 0
    figures = json.loads(path.read_text())
    assert figures["dtype"] == dtype
    assert figures["all"]["tokens"] == 30 == sum(part["tokens"] for part in figures["positions"].values())
    assert 0.0 <= figures["all"]["k3"] < limit
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if "e-0" in line]) >= len(figures["positions"]) + 1
    assert "within the limit" in shown


def test_another_trainer_is_found_out(capsys):
    directory = str(read_golden("llama-tied").directory)
    arguments = ["logprobs", directory, "--dtype", "float32", "--trainer-dtype", "bfloat16", *SMALL, *ENGINE, "--limit", "1e-5"]
    assert verify.main(arguments) == 1
    assert "above the limit" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["llama-tied", "mixtral-full"])
def test_transformers_as_the_trainer(name, capsys):
    arguments = ["logprobs", str(read_golden(name).directory), "--dtype", "float32", "--trainer", "transformers", *SMALL, *ENGINE]
    assert verify.main([*arguments, "--limit", "1e-3"]) == 0
    assert "within the limit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "0"], "temperature"),
        (["--limit", "nan"], "limit"),
        (["--prompt-tokens", "90"], "context"),
    ],
)
def test_mistakes_are_named(arguments, named, capsys):
    assert verify.main(["logprobs", str(read_golden("llama-tied").directory), *ENGINE, *arguments]) == 2
    assert named in capsys.readouterr().err
