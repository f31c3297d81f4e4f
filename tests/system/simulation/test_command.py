"""`python -m jaxserve.simulate`: what it prints, what it writes, what it refuses; and that it needs no jax."""

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxserve.simulate import main
from tests.unit.simulation.support import request, trace

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["--requests", "20", "--rate", "20"]


def test_prints_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama-3-8b", "--hardware", "h100", *SMALL, "--tenants", "a=1,b=1"]) == 0
    text = capsys.readouterr().out
    for words in ("20 finished", "goodput", "TTFT", "By tenant", "prefix hit rate", "preemptions"):
        assert words in text


def test_tells_of_refusals_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--replicas", "2", "--fail", "0@0.05", "--max-waiting", "2", "--max-num-seqs", "2", "--retries", "1"]
    assert main(["--requests", "40", "--rate", "200", *flags]) == 0
    text = capsys.readouterr().out
    assert "for a full queue; each told when to come back" in text
    assert "went on in another replica" in text


def test_tells_of_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"method": "draft_model", "model": "llama-3-8b", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.5}
    assert main(["llama-3-70b", "--tp", "8", *SMALL, "--speculative-config", json.dumps(given)]) == 0
    text = capsys.readouterr().out
    for words in ("drafts verified", "of them right", "tokens a row and step", "draft model's share of the device"):
        assert words in text
    assert main([*SMALL, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']) == 2
    assert "synthetic_acceptance_rates or synthetic_acceptance_length must be given" in capsys.readouterr().err


def test_json_holds_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert main([*SMALL, "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["all"]["finished"] == 20
    assert result["scenario"]["workload"]["requests"] == 20
    assert {len(values) for values in result["series"].values()} == {len(result["series"]["queue"])}


def test_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    flags = ["--requests", "60", "--rate", "100", "--num-pages", "120", "--output-tokens", "300", "--max-waiting", "20"]
    assert main([*flags, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_plot_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main([*SMALL, "--plot", str(tmp_path / "out.png")]) == 2
    assert capsys.readouterr().err == "jaxserve: plots need matplotlib: pip install 'jaxserve[plots]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-9"], "unknown model 'llama-9'"),
        (["--hardware", "abacus"], "unknown hardware 'abacus'"),
        (["--rate", "-1"], "rate must be above 0"),
        (["--rate", "fast"], "invalid float value"),
        (["--speed", "3"], "unrecognized arguments"),
        (["--trace", "/none.jsonl"], "cannot read /none.jsonl"),
        (["--replicas", "2", "--fail", "2@1"], "fail names replica 2, but there are 2"),
        (["--prompt-tokens", "9000"], "9000 + 128 tokens, but the context is 8192"),
        (["--max-num-batched-tokens", "8"], "max_num_batched_tokens must be at least 32"),
        (["--json", "/none/out.json", *SMALL], "cannot write /none/out.json"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("jaxserve: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_trace_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 10, 10), request(-2, 10, 10))
    assert main(["--trace", path]) == 2
    assert capsys.readouterr().err == f"jaxserve: {path}:2: arrival must be seconds of at least 0, got -2\n"


def test_runs_without_jax() -> None:
    code = "import sys, jaxserve.simulate; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & {"jax", "jaxlib", "flax", "matplotlib"}
