"""JaxserveLM answers what lm-eval's own `hf` model answered (harness.json), without torch."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from jaxserve.evaluation.model import JaxserveLM
from jaxserve.llm import LLM
from tests.golden import harness

TOLERANCE = 1e-3
WANTED: dict[str, Any] = json.loads(harness.ANSWERS.read_text())
pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and its metrics


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> JaxserveLM:
    directory = harness.write_checkpoint(tmp_path_factory.mktemp("harness") / "tiny")
    shapes: dict[str, Any] = {"max_num_seqs": 4, "before_ready": "fewest", "max_num_batched_tokens": 32, "page_size": 4}
    return JaxserveLM(LLM(str(directory), dtype="float32", **shapes))


@pytest.fixture(scope="module")
def answers(model: JaxserveLM) -> dict[str, Any]:
    return harness.asked(model)


def near(value: float) -> Any:
    return pytest.approx(value, abs=TOLERANCE)


@pytest.mark.parametrize("number", range(len(harness.LOGLIKELIHOODS)))
def test_loglikelihood(answers: dict[str, Any], number: int) -> None:
    wanted, greedy = WANTED["requests"]["loglikelihood"][number]
    assert answers["loglikelihood"][number] == [near(wanted), greedy]


@pytest.mark.parametrize("number", range(len(harness.TEXTS)))
def test_loglikelihood_rolling(answers: dict[str, Any], number: int) -> None:
    assert answers["loglikelihood_rolling"][number] == near(WANTED["requests"]["loglikelihood_rolling"][number])


@pytest.mark.parametrize("number", range(len(harness.GENERATIONS)))
def test_generate_until(answers: dict[str, Any], number: int) -> None:
    assert answers["generate_until"][number] == WANTED["requests"]["generate_until"][number]


@pytest.mark.parametrize("chat", [False, True])
def test_scores_of_tasks(model: JaxserveLM, chat: bool) -> None:
    wanted, got = WANTED["chat" if chat else "tasks"], harness.scored(model, chat=chat)
    assert got["metrics"].keys() == wanted["metrics"].keys()
    for task, metrics in wanted["metrics"].items():
        assert got["metrics"][task] == pytest.approx(metrics, rel=TOLERANCE)
        assert all(math.isfinite(value) for value in metrics.values())
    for task, documents in wanted["answers"].items():
        assert len(documents) == len(got["answers"][task]) > 0
        for ours, theirs in zip(got["answers"][task], documents, strict=True):
            assert flat(ours) == [near(value) if isinstance(value, float) else value for value in flat(theirs)]


def flat(answers: Any) -> list[Any]:
    """The texts, numbers and truths in nested lists."""
    return [leaf for part in answers for leaf in flat(part)] if isinstance(answers, list) else [answers]


def test_the_answers_are_not_all_alike() -> None:
    """Of a model that says one thing every test above would hold."""
    requests = WANTED["requests"]
    assert len({round(value, 2) for value, _ in requests["loglikelihood"]}) > 12
    assert [greedy for _, greedy in requests["loglikelihood"]].count(True) == 2
    assert len(set(requests["generate_until"])) > 3
    assert 0.0 < WANTED["tasks"]["metrics"]["choices"]["acc,none"] < 1.0
