"""`python -m jaxserve.plan`: what it prints, writes and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve import plan
from tests.golden.reading import DATA

ROOT = Path(__file__).resolve().parents[3]
TYPICAL = ["llama-3-70b", "--hardware", "h100", "--tp", "8", "--weights", "fp8"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert plan.main(arguments) == 0
    return capsys.readouterr().out


def test_prints_the_figures_of_70b_on_eight_h100s(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *TYPICAL)
    for figure in ("320 KiB per token", "66.25 GB for KV", "1.7M tokens", "Decode floor 2.6 ms", "591 FLOP/B"):
        assert figure in text, figure


def test_prints_the_tokens_of_h200s(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "llama-3-70b", "--hardware", "h200", "--tp", "8", "--weights", "fp8")
    assert "126.75 GB for KV" in text
    assert "3.3M tokens" in text


@pytest.mark.parametrize(
    "arguments",
    [
        TYPICAL,
        ["deepseek-v3", "--hardware", "h200", "--tp", "8", "--weights", "fp8", "--users", "100000"],
        ["llama-3-8b", "--hardware", "b200", "--prompt", "100", "--output", "100"],
        ["mixtral-8x7b", "--tp", "8", "--kv-dtype", "fp8", "--itl-ms", "500"],
    ],
)
def test_no_number_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    text = printed(capsys, *arguments, "--formulas")
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 118


def test_slots_of_adapters_leave_less_for_kv(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "llama-3-8b", "--max-loras", "8", "--max-lora-rank", "12", "--formulas")
    assert "adapters (8 of rank 16)" in text
    assert "79.65 - 14.96 - 0.62 - 1.5 - 2.0 - 1.5 = 59.06 GiB" in text
    assert "adapters" not in printed(capsys, "llama-3-8b", "--formulas")
    for flag, said in (
        ("--max-loras", "max_loras must be at least 1, got 0"),
        ("--max-lora-rank", "max_lora_rank must be between 1"),
    ):
        assert plan.main(["llama-3-8b", flag, "0"]) == 2
        assert said in capsys.readouterr().err
    assert plan.main(["qwen3-moe", "--lora-experts"]) == 2
    assert "lora_experts needs max_loras" in capsys.readouterr().err


def test_formulas_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Formulas" not in printed(capsys, *TYPICAL)
    text = printed(capsys, *TYPICAL, "--formulas", "--requests-per-second", "50")
    for line in (
        "2 x 80 x 8 x 128 x 2 = 320 KiB",
        "79.65 - 8.47 - 1.5 - 2.0 - 1.5 = 66.18 GiB",
        "8.83 GB / 3,350 GB/s = 2.64 ms",
        "1,979 T / 3.35 T = 591 FLOP/B",
        "50 / (16.13 x 0.7) -> 5",
    ):
        assert line in text, line


def test_latent_and_windowed_models_have_their_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "deepseek-v3", "--hardware", "h200", "--tp", "16", "--weights", "fp8", "--formulas")
    assert "61 x (512 + 64) x 2 = 68.62 KiB" in text
    assert "note: Latent attention" in text
    assert "note: 16 GPUs are more than one node has" in text
    assert "40.9 GB more on each" in text
    text = printed(capsys, str(DATA / "deepseek-v32-sparse"), "--hardware", "h200", "--tp", "2", "--formulas")
    assert "(latent + rotary key + index key) x bytes" in text
    assert "3 x (16 + 8 + 16) x 2 = 240 B" in text
    assert "note: Sparse attention: a step is counted as if tokens attended to all" in text
    text = printed(capsys, "gpt-oss-120b", "--hardware", "a100-80", "--tp", "16", "--weights", "fp8")
    for note in (
        "note: Windowed layers",
        "has no FP8 units",
        "8 KV heads on 16 GPUs: each head is held 2 times",
        "note: Experts",
    ):
        assert note in text, note


def test_json_holds_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    printed(capsys, *TYPICAL, "--json", str(path), "--users", "1000")
    figures = json.loads(path.read_text())
    assert figures["kv_token_bytes"] == 327680
    assert figures["round_ledger"]["kv"] == 66.25
    assert figures["ledger"]["kv_tokens"] == 1_734_858
    assert figures["floor_s"] == pytest.approx(2.6e-3, rel=0.02)
    assert figures["fleet"]["needed"] == figures["fleet"]["replicas"]
    assert figures["config"]["users"] == 1000


def test_the_load_decides_the_replicas_and_too_few_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1,000 users need 7 replicas" in printed(capsys, *TYPICAL, "--users", "1000")
    assert "2 given: too few" in printed(capsys, *TYPICAL, "--users", "1000", "--replicas", "2")


def test_price_and_efficiencies_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    dear = printed(capsys, *TYPICAL, "--price", "5", "--context", "1024", "--formulas")
    assert "8 x $5.00" in dear
    assert "Decode at 1K tokens of context" in dear
    slow = printed(capsys, *TYPICAL, "--memory-efficiency", "0.5", "--compute-efficiency", "0.3")
    assert "Prefill alone at 30% of peak compute" in slow
    assert "Decode floor 2.6 ms" in slow  # a floor is of the hardware, not of what is reached


def test_a_checkpoint_directory_is_planned_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    more = {"intermediate_size": 512, "max_position_embeddings": 4096}
    folder = tmp_path / "model[v2]"  # no markup
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | more))
    assert "model[v2]  " in printed(capsys, str(folder))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-9"], "unknown model 'llama-9'"),
        (["llama-3-8b", "--hardware", "v100"], "known are a100-40, a100-80, h100, h200, b200"),
        (["llama-3-70b", "--tp", "3"], "tp 3 does not divide the 64 heads"),
        (["llama-3-70b"], "60.96 GB short; tp 2 would fit"),
        (["llama-3-8b", "--prompt", "0"], "prompt must be at least 1, got 0"),
        (["llama-3-8b", "--output", "-7"], "output must be at least 1, got -7"),
        (["llama-3-8b", "--context", "-1"], "context must be at least 1, got -1"),
        (["llama-3-8b", "--context", "8193"], "context 8193 is more than the 8192 tokens that llama-3-8b was made for"),
        (["llama-3-8b", "--prompt", "8000", "--output", "200"], "prompt 8000 + output 200 tokens is more than the 8192"),
        (
            ["llama-3.1-70b", "--tp", "2", "--context", "131072"],
            "a request of 131072 tokens does not fit: the KV cache holds 58,",
        ),
        (["llama-3-8b", "--users", "0"], "users must be at least 1"),
        (["llama-3-8b", "--requests-per-second", "nan"], "requests_per_second must be above 0 and finite"),
        (["llama-3-8b", "--users", "1", "--requests-per-second", "1"], "not both"),
        (["llama-3-8b", "--utilisation", "1.5"], "utilisation must be in (0, 1], got 1.5"),
        (["llama-3-8b", "--price", "0"], "price must be above 0"),
        (["llama-3-8b", "--tp", "many"], "invalid int value: 'many'"),
        (["llama-3-8b", "--weights", "fp16"], "invalid choice: 'fp16'"),
        (["llama-3-8b", "--json", "/proc/none/plan.json"], "cannot write /proc/none/plan.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert plan.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("jaxserve: ")
    assert err.count("\n") == 1


def test_the_planner_runs_without_jax() -> None:
    code = "import sys, jaxserve.plan; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & {"jax", "jaxlib", "flax", "numpy"}


def test_the_console_script_opens_the_door() -> None:
    command = [sys.executable, "-m", "jaxserve.cli", "plan", *TYPICAL]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "60"})
    assert "320 KiB per token" in result.stdout


def test_a_cache_in_8_bits_is_shown_with_its_scales_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *TYPICAL, "--kv-dtype", "int8", "--formulas")
    assert "KV cache 162.5 KiB per token, 160 KiB without scales (20.31 KiB a GPU)" in text
    assert "2 x 80 x 8 x (128 x 1 + 2) = 162.5 KiB; a GPU 20.31 KiB" in text
