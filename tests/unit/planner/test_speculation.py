"""When speculation pays, against numbers worked out by hand and against the simulator's steps."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxserve.errors import ConfigError
from jaxserve.planner.memory import GIB
from jaxserve.planner.report import show
from jaxserve.planner.roofline import decode_step, machine, verify_step
from jaxserve.planner.study import PlanConfig, Study, study
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.step.buckets import BucketGrid
from tests.unit.planner.support import layout

HOST_S = 1e-3


def planned(model: str, more: dict[str, Any], **settings: Any) -> Study:
    given = json.dumps({"num_speculative_tokens": 4, **more})
    return study(PlanConfig(model=model, speculative_config=given, **settings))


def test_a_verify_step_is_the_simulators() -> None:
    place = layout("llama-3-8b", tp=2, weights="bf16")
    grid = BucketGrid.make(max_rows=16, max_tokens=80, min_rows=1, fine=True).with_drafts(4)
    costs = CostModel(place, Calibration(), grid)
    rows = np.full(16, 5, np.int64)
    expected = costs.cost(rows, np.full(16, 4000, np.int64), rows - 1)
    step = verify_step(place, machine(place, 0.6), 16, 4, 4000)
    assert step.weights_s + step.kv_s == pytest.approx(expected.memory, rel=1e-9)
    assert step.compute_s == pytest.approx(expected.compute, rel=1e-3), "the simulator's first drafts see a little less"
    assert step.total_s == pytest.approx(expected.total, rel=1e-3)
    assert verify_step(place, machine(place), 7, 0, 300) == decode_step(place, machine(place), 7, 300)


def test_gains_of_the_hosts_drafts() -> None:
    result = planned("llama-3-8b", {"method": "ngram"})
    plan = result.speculation
    assert plan is not None
    assert (plan.draft, plan.draft_bytes_device, plan.prefill_share) == (None, 0.0, 0.0)
    row = plan.rows[0]
    assert row.batch == 1
    gain = {round(one.chance, 1): one for one in row.gains}[0.8]
    tokens = 1 + 0.8 + 0.64 + 0.512 + 0.4096
    assert gain.drafts == 4
    assert gain.speedup == pytest.approx(tokens * row.plain_s / (row.verify_s + HOST_S))
    assert result.ledger == study(PlanConfig(model="llama-3-8b")).ledger, "drafts of the host take no memory of a device"
    assert all(one.speedup > 1.02 if one.drafts else one.speedup == 1.0 for each in plan.rows for one in each.gains)
    assert [one.speedup for one in row.gains] == sorted(one.speedup for one in row.gains)


def test_a_draft_takes_memory_and_pays_at_few_rows() -> None:
    plain = study(PlanConfig(model="llama-3-70b", tp=8, weights="fp8"))
    result = planned("llama-3-70b", {"model": "llama-3-8b"}, tp=8, weights="fp8")
    plan = result.speculation
    assert plan is not None
    weights = 2 * (8_030_261_248 - 266_240) / 8 + 2 * 266_240  # norms are whole on every GPU
    a_token, own = 80 * 2 * 128 * 2, 32 * 2 * 128 * 2
    assert plan.draft_bytes_device == pytest.approx(weights)
    assert plan.draft_kv_bytes_device == own
    assert result.ledger.draft == pytest.approx(weights / GIB)
    assert result.ledger.kv_tokens == int((plain.ledger.kv * GIB - weights) / (a_token + own))
    assert result.contexts[0].kv_bytes_device == 2048 * (a_token + own)
    assert plan.rows[0].gains[-1].drafts == 4
    assert plan.rows[0].gains[-1].speedup > 1.5
    assert not any(gain.drafts for gain in plan.rows[-1].gains)
    assert 0.1 < plan.prefill_share < 0.3


def test_a_head(tmp_path: Path) -> None:
    """EAGLE-3 for 70B: a layer that sees twice as much, 3 hidden states side by side, and a reduced vocabulary."""
    head = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "hidden_size": 8192,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (tmp_path / "config.json").write_text(json.dumps(head))
    result = planned("llama-3-70b", {"method": "eagle3", "model": str(tmp_path)}, tp=8, weights="fp8")
    draft = result.layout.draft
    assert draft is not None
    attention = 2 * 8192 * (8192 + 2 * 1024) + 8192 * 8192
    matrices = attention + 3 * 8192 * 28672 + 32000 * 8192 + 128256 * 8192
    assert draft.weight_bytes_device == 2 * (matrices / 8 + 3 * 8192 * 8192 + 4 * 8192)
    assert draft.kv_token_bytes_device == 2 * 128 * 2
    shown = StringIO()
    show(result, Console(file=shown, width=118), with_formulas=True)
    for words in ("Speculation (eagle3", "draft (bf16)", "HBM - weights - draft - workspace", "since it follows them"):
        assert words in shown.getvalue()


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        ("llama-3-8b", {"model": "qwen3-8b"}, "the draft has 151936 tokens, the target 128256"),
        ("llama-3-8b", {"model": "nowhere"}, "unknown model 'nowhere'"),
        ("mistral-7b", {"model": "mistral-7b"}, "every layer of the target has a sliding window"),
        ("llama-3-8b", {"method": "ngram", "synthetic_acceptance_length": 2}, "for simulations alone"),
        ("llama-3-8b", {"model": "llama-3-70b"}, "llama-3-8b with the draft llama-3-70b in bf16 leaves no room"),
    ],
)
def test_what_cannot_be(model: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(model, more)
