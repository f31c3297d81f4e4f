"""The cost model's factors come back from step times that were made with known ones; bad profiles are named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError
from jaxserve.planner import catalogue
from jaxserve.planner.catalogue import Hardware
from jaxserve.planner.hf import shape_from_hf
from jaxserve.planner.memory import Layout
from jaxserve.simulate import main
from jaxserve.simulation.calibrate import Fit, fit
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.profile import read_profile
from jaxserve.simulation.scenario import replica_spec
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.step.buckets import BucketGrid

MODEL = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2816,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
LAPTOP = Hardware(
    name="a laptop",
    hbm_gb=32.0,
    hbm_mib=32768.0,
    bandwidth_gb_s=12.5,
    bf16_tflops=0.4,
    nvlink_gb_s=1.0,
    margin_gb=0.0,
    price_per_hour=0.0,
)
SHAPES = [
    *(((1,) * rows, (length,) * rows) for rows in (1, 4, 16, 40) for length in (32, 500, 2000)),
    *(((chunk,), (before + chunk,)) for chunk in (16, 64, 256) for before in (0, 1000)),
    *(((1,) * rows + (chunk,), (700,) * rows + (chunk,)) for rows in (3, 15) for chunk in (60, 200)),
]


def profile(on: Hardware, calibration: Calibration, noise: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A profile of steps that take exactly what the cost model says, or that give or take some noise."""
    layout = Layout(shape=shape_from_hf(MODEL, "small"), hardware=on, tp=1, weights="bf16", kv_dtype="bf16")
    fine = changes.get("hardware") is not None
    costs = CostModel(layout, calibration, BucketGrid.make(max_rows=64, max_tokens=256, min_rows=2, fine=fine))
    random = np.random.default_rng(0)
    steps = []
    for counts, lengths in SHAPES:
        seconds = costs.cost(np.array(counts, np.int64), np.array(lengths, np.int64)).total
        steps.append({"counts": counts, "lengths": lengths, "seconds": seconds * random.lognormal(0.0, noise)})
    return {
        "model_name": "small",
        "model": MODEL,
        "tp": 1,
        "weights": "bf16",
        "kv_dtype": "bf16",
        "hardware": None,
        "machine": "a laptop",
        "memory_bytes": 32 * 2**30,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "min_rows": 2,
        "host_seconds": 0.0007,
        "steps": steps,
        "date": "a key for people",
        **changes,
    }


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def fitted(tmp_path: Path, content: dict[str, Any]) -> Fit:
    path = write(tmp_path / "profile.json", content)
    return fit(read_profile(path), path)


@pytest.mark.parametrize("overlap", [0.0, 0.6, 1.0])
def test_rates_of_an_unknown_machine_come_back(tmp_path: Path, overlap: float) -> None:
    true = Calibration(compute=1.0, attention=0.2, memory=1.0, overlap=overlap, launch_s=2e-3)
    found = fitted(tmp_path, profile(LAPTOP, true))
    assert not found.known
    assert found.hardware.name == "a laptop"
    assert found.hardware.hbm_mib == 32768
    assert found.hardware.bandwidth_gb_s == pytest.approx(12.5, rel=1e-3)
    assert found.hardware.bf16_tflops == pytest.approx(0.4, rel=1e-3)
    factors = found.calibration
    assert (factors.compute, factors.memory) == (1.0, 1.0)
    assert factors.attention == pytest.approx(0.2, rel=1e-3)
    assert factors.overlap == pytest.approx(overlap)
    assert factors.launch_s == pytest.approx(2e-3, rel=1e-3)
    assert factors.host_s == 0.0007
    assert found.mean_error < 1e-6
    assert all(abs(step.error) < 1e-5 for step in found.steps)


def test_shares_of_a_known_gpus_peaks_come_back(tmp_path: Path) -> None:
    true = Calibration(compute=0.5, attention=0.3, memory=0.8, overlap=0.9, launch_s=40e-6)
    found = fitted(tmp_path, profile(catalogue.hardware("h100"), true, hardware="h100"))
    assert found.known
    assert found.hardware == catalogue.hardware("h100")
    factors = found.calibration
    for name in ("compute", "attention", "memory", "overlap", "launch_s"):
        assert getattr(factors, name) == pytest.approx(getattr(true, name), rel=0.02)


def test_steps_of_gpus_are_padded_to_their_rows(tmp_path: Path) -> None:
    """40 rows to 48 on a GPU, to 64 elsewhere; what is padded counts, because nothing hides it."""
    true = Calibration(compute=0.01, attention=0.01, memory=0.8, overlap=0.0, launch_s=40e-6)
    path = write(tmp_path / "p.json", profile(catalogue.hardware("h100"), true, hardware="h100"))
    assert fit(read_profile(path), path).mean_error < 1e-6
    assert _padded(ReplicaConfig()) == _padded(ReplicaConfig(profile=path)) == 48
    laptop = write(tmp_path / "laptop.json", profile(LAPTOP, replace(true, compute=1.0)))
    assert _padded(ReplicaConfig(model="llama-3-8b", profile=laptop)) == 64


def _padded(replica: ReplicaConfig) -> int:
    """Rows of the bucket of 40 decodes."""
    spec = replica_spec(replica, SchedulerConfig(max_num_seqs=64))
    return spec.grid(spec.limits).choose(40, 40).rows


def test_noise_is_averaged_out_and_reported(tmp_path: Path) -> None:
    true = Calibration(compute=1.0, attention=0.2, memory=1.0, overlap=0.0, launch_s=2e-3)
    found = fitted(tmp_path, profile(LAPTOP, true, noise=0.05))
    assert found.hardware.bf16_tflops == pytest.approx(0.4, rel=0.1)
    assert 0.02 < found.mean_error < 0.06
    assert found.mean_error == pytest.approx(np.sqrt(np.mean([step.error**2 for step in found.steps])))
    first, (counts, lengths) = found.steps[0], SHAPES[0]
    assert (first.rows, first.tokens, first.kv_tokens) == (len(counts), sum(counts), sum(lengths))


def test_nothing_is_faster_than_the_data_sheet(tmp_path: Path) -> None:
    """Steps of a better GPU: shares end at 1, and the error says that it does not fit."""
    true = Calibration(compute=1.0, attention=1.0)
    found = fitted(tmp_path, profile(catalogue.hardware("h100"), true, hardware="a100-80"))
    assert found.calibration.memory == found.calibration.compute == found.calibration.attention == 1.0
    assert found.mean_error > 0.05


def test_a_replica_takes_the_machine_of_the_profile(tmp_path: Path) -> None:
    true = Calibration(compute=1.0, attention=0.2, memory=1.0, overlap=0.0, launch_s=2e-3)
    path = write(tmp_path / "p.json", profile(LAPTOP, true))
    spec = replica_spec(ReplicaConfig(model="llama-3-8b", profile=path, network_efficiency=0.5), SchedulerConfig())
    assert spec.layout.hardware.bandwidth_gb_s == pytest.approx(12.5, rel=1e-3)
    assert (spec.min_rows, spec.calibration.host_s, spec.calibration.network) == (2, 0.0007, 0.5)
    assert spec.scheduler.itl_target == 0.4, "a CPU's"


def test_shares_carry_over_to_another_gpu(tmp_path: Path) -> None:
    true = Calibration(compute=0.5, attention=0.3, memory=0.8, launch_s=40e-6)
    path = write(tmp_path / "p.json", profile(catalogue.hardware("h100"), true, hardware="h100"))
    own = replica_spec(ReplicaConfig(profile=path), SchedulerConfig())
    other = replica_spec(ReplicaConfig(profile=path, hardware="b200"), SchedulerConfig())
    assert own.layout.hardware == catalogue.hardware("h100")
    assert other.layout.hardware == catalogue.hardware("b200")
    assert own.calibration == other.calibration
    assert own.scheduler.itl_target == 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hardware": "h100"}, "hardware is h100, but the profile tells the rates of a laptop"),
        ({"tp": 2}, "tp is 2, but the profile does not tell the links of a laptop"),
        ({"launch_us": 3.0}, "launch_us is fitted to the profile"),
        ({"attention_efficiency": 0.1}, "attention_efficiency is fitted to the profile"),
    ],
)
def test_settings_that_contradict_the_profile(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "p.json", profile(LAPTOP, Calibration(compute=1.0)))
    with pytest.raises(ConfigError, match=message):
        replica_spec(ReplicaConfig(profile=path, **settings), SchedulerConfig())


def step(**changes: Any) -> dict[str, Any]:
    return {"counts": [1], "lengths": [5], "seconds": 0.1, **changes}


GOOD = profile(LAPTOP, Calibration(compute=1.0))
DECODES = [entry for entry in GOOD["steps"] if max(entry["counts"]) == 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ({name: value for name, value in GOOD.items() if name != "tp"}, "missing required field `tp`"),
        ({**GOOD, "weights": "bf17"}, "Invalid enum value 'bf17'"),
        ({**GOOD, "tp": 2}, "tp is 2, but of a machine that the planner does not know"),
        ({**GOOD, "min_rows": 0}, "min_rows must be at least 1, got 0"),
        ({**GOOD, "host_seconds": -0.1}, "host_seconds must be at least 0, got -0.1"),
        ({**GOOD, "steps": GOOD["steps"][:7]}, "7 steps are too few"),
        ({**GOOD, "steps": DECODES}, "steps with prompts are both needed"),
        ({**GOOD, "steps": [entry for entry in GOOD["steps"] if entry not in DECODES]}, "steps with prompts are both needed"),
        ({**GOOD, "steps": [*GOOD["steps"], step(seconds=-1.0)]}, r"steps\[22\]: seconds must be above 0, got -1"),
        ({**GOOD, "steps": [*GOOD["steps"], step(seconds=0)]}, r"steps\[22\]: seconds must be above 0"),
        ({**GOOD, "steps": [*GOOD["steps"], step(counts=[1, 1])]}, r"steps\[22\]: 2 counts and 1 lengths"),
        ({**GOOD, "steps": [*GOOD["steps"], step(counts=[], lengths=[])]}, r"steps\[22\]: 0 counts"),
        ({**GOOD, "steps": [*GOOD["steps"], step(counts=[6])]}, r"steps\[22\]: a row computes 6 tokens of 5"),
        ({**GOOD, "steps": [*GOOD["steps"], step(counts=[0])]}, r"steps\[22\]: a row computes 0 tokens"),
        (
            {**GOOD, "steps": [*GOOD["steps"], step(counts=[300], lengths=[300])]},
            "300 tokens in 1 rows, but a step has",
        ),
    ],
)
def test_bad_profiles_are_named(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path / "profile.json", content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_profile(path)
    assert caught.value.message.startswith(f"profile: {path}: ")
    assert caught.value.param == "profile"


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"profile: cannot read /none\.json: No such file"):
        read_profile("/none.json")


def test_times_that_do_not_depend_on_the_work_are_refused(tmp_path: Path) -> None:
    content = {**GOOD, "steps": [{**entry, "seconds": 0.1} for entry in GOOD["steps"]]}
    with pytest.raises(ConfigError, match="no step tells the"):
        fitted(tmp_path, content)


def test_times_of_something_else_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    content = {**GOOD, "steps": [{**entry, "seconds": float(random.lognormal(0.0, 3.0))} for entry in GOOD["steps"]]}
    with pytest.raises(ConfigError, match=r"profile.json: (the best fit is|no step tells)"):
        fitted(tmp_path, content)


def test_the_door_prints_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would wrap the lines that are looked at
    true = Calibration(compute=1.0, attention=0.2, memory=1.0, overlap=0.0, launch_s=2e-3)
    content = profile(LAPTOP, true)
    content["steps"][3]["seconds"] *= 1.3
    directory = tmp_path / "model"
    directory.mkdir()
    write(directory / "config.json", MODEL)
    flags = ["--requests", "5", "--rate", "1", "--prompt-tokens", "20", "--output-tokens", "3"]
    out = tmp_path / "out.json"
    path = write(tmp_path / "p.json", content)
    assert main(["model", "--profile", Path(path).name, "--json", str(out), *flags]) == 0
    text = capsys.readouterr().out
    assert "on 1 x a laptop" in text
    assert "Fitted to 22 measured steps" in text
    steps = json.loads(out.read_text())["fit"]["steps"]
    assert len(steps) == 22
    worst = max(steps, key=lambda entry: abs(entry["fitted"] / entry["measured"] - 1.0))
    assert worst["measured"] == content["steps"][3]["seconds"]
