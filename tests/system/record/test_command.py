"""`python -m jaxserve.simulate --replay`: what it prints, how it exits, what it refuses; and that it needs no jax."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jaxserve.record.dump import write_dump
from jaxserve.record.replay import Difference, ReplayedStep
from jaxserve.simulate import main
from jaxserve.simulation.replay import Replay
from jaxserve.simulation.replay_table import show_replay
from tests.unit.record.support import Engine, fresh, replayed, request

ROOT = Path(__file__).resolve().parents[3]


def recorded(steps=30, capacity=25):
    engine = Engine(capacity=capacity)
    engine.core.add([request("a", range(9), 30)])
    engine.core.add([request("b", range(3), 30)])
    for _ in range(steps):
        engine.core.step()
    return replace(engine.recording(), reason="Traceback\nRuntimeError: [the device] is gone\n", created=86400.0)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.record"
    write_dump(path, recorded())
    return path


def test_prints_recorded_and_predicted_times(path, capsys):
    assert main(["llama-3-8b", "--hardware", "h100", "--replay", str(path)]) == 0
    text = capsys.readouterr().out
    assert "hash, jaxserve 0.1.0, jax 0.11.2, 1970-01-02 00:00:00 UTC" in text
    assert "RuntimeError: [the device] is gone" in text
    assert "5 to 29, 2 sequences; 1 step without a result" in text
    assert "llama-3-8b on 1 x" in text
    assert "The 20 slowest steps" in text
    rows = [line.split() for line in text.splitlines() if line.split() and line.split()[0].isdecimal()]
    assert len(rows) == 20
    assert all(row[1] == "2" and row[2] == "2" and row[3] == "250" and 4 < float(row[4]) < 7 for row in rows)
    assert text.splitlines()[-1].startswith("predicted: ")
    assert text.splitlines()[-1].endswith("for 24 steps that took 6.00 s")


def test_slower_hardware_takes_longer(path, capsys):
    def verdict(*flags):
        assert main([*flags, "--replay", str(path)]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert verdict("--hardware", "h100") == verdict()
    assert verdict("--launch-us", "900") != verdict()
    assert verdict("--hardware", "h200") != verdict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay", "/none.record"], "cannot read /none.record: No such file or directory"),
        (["--replay", __file__], f"{__file__}: not a recording of jaxserve"),
        (["--replay-on", "model"], "replay_on is model, but there is nothing to replay"),
        (["--replay", "RECORDING", "--rate", "3"], "rate means nothing to a replay"),
        (["--replay", "RECORDING", "--max-waiting", "3"], "max_waiting means nothing to a replay"),
        (["--replay", "RECORDING", "--json", "out.json"], "json means nothing to a replay"),
        (["--replay", "RECORDING", "--slo-ttft-ms", "3"], "slo_ttft_ms means nothing to a replay"),
        (["--replay", "RECORDING", "--num-pages", "30"], "num_pages means nothing to a replay"),
        (["--replay", "RECORDING", "--replay-on", "model", "--tp", "2"], "tp means nothing to a replay"),
        (["--replay", "RECORDING", "--replay-on", "model"], "model: no checkpoint directory at 'llama-3-8b'"),
        (["pico", "--replay", "RECORDING", "--replay-on", "model"], "is of hash (fingerprint f00d), pico is another model"),
    ],
)
def test_mistakes_are_one_line(arguments, message, path, capsys):
    assert main([str(path) if item == "RECORDING" else item for item in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxserve: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_simulator_needs_no_jax(path, tmp_path):
    (tmp_path / "jax.py").write_text("raise RuntimeError('jax is imported')\n")
    command = [sys.executable, "-m", "jaxserve.simulate", "--replay", str(path)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "predicted: " in result.stdout


# What the table says of tokens


def shown(steps):
    file = io.StringIO()
    show_replay(Replay(recorded(), "pico on this machine", True, tuple(steps)), Console(file=file, width=118, highlight=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def compared_steps():
    recording = recorded()
    return replayed(recording, fresh(recording))


def test_equal_tokens_are_counted():
    steps = compared_steps()
    assert shown(steps)[-1] == "equal: all 48 tokens are those recorded"
    assert any("replayed ms" in line for line in shown(steps))


def test_the_first_difference_is_the_verdict():
    steps = compared_steps()
    steps[3] = replace(steps[3], differences=(Difference("[b]", 11, 5, 7),))
    steps[4] = replace(steps[4], differences=(Difference("a", 12, 1, 2), Difference("b", 12, 3, 4)))
    number = steps[3].plan.step
    lines = shown(steps)
    text = f"different: 3 of 48 tokens, first in step {number} of [b] at position 11: recorded 5, replayed 7"
    assert lines[-1] == text
    table = [line.split() for line in lines[lines.index("Differences") :] if len(line.split()) == 5]
    after = [[f"{number + 1}", "a", "12", "1", "2"], [f"{number + 1}", "b", "12", "3", "4"]]
    assert table[1:] == [[f"{number}", "[b]", "11", "5", "7"], *after]
    assert not Replay(recorded(), "", True, tuple(steps)).equal


def test_many_differences_are_cut_short():
    steps = compared_steps()
    steps[3] = replace(steps[3], differences=tuple(Difference("a", place, 1, 2) for place in range(21)))
    assert "The first 20 of 21 differences" in shown(steps)


def test_an_error_is_the_verdict():
    steps = compared_steps()[:4]
    last = steps[-1].plan
    steps[-1] = ReplayedStep(last, 0.0, None, error=RuntimeError("[gone]"))
    lines = shown(steps)
    assert lines[-1] == f"failed: step {last.step} raised RuntimeError: [gone]"
    assert any(line.split() == [str(last.step), "2", "2", "none", "-"] for line in lines)
    assert not Replay(recorded(), "", True, tuple(steps)).equal


def test_a_recording_without_steps_says_so():
    assert shown([])[-1] == "nothing to replay: the recording holds no steps"
