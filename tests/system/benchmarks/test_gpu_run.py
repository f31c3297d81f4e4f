"""A run of sections in processes of their own: what one section does wrong costs that section only."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu import report
from benchmarks.gpu import run as running
from benchmarks.gpu.__main__ import MINUTES, main
from benchmarks.gpu.child import run_section
from benchmarks.gpu.run import Plan, collect, run_process, unmeasured
from benchmarks.gpu.sections import FIRST, SECTIONS
from benchmarks.gpu.tasks import Task


def events(section, seconds=60.0):
    found: list[Any] = []
    run_section(section, None, seconds, found.append)
    return found


def works(value):
    return Task({"case": value}, lambda: {"seconds": value})


def fails(value):
    def measure():
        raise ZeroDivisionError("nothing to divide")

    return Task({"case": value}, measure)


def test_a_task_that_fails_is_recorded_and_the_next_one_goes_on():
    first, second = events(lambda sizes: iter([fails(1), works(2)]))
    assert first["figure"]["case"] == 1
    assert first["figure"]["error"]["type"] == "ZeroDivisionError"
    assert first["figure"]["error"]["message"] == "nothing to divide"
    assert "measure" in first["figure"]["error"]["traceback"]
    assert second == {"figure": {"case": 2, "seconds": 2}}


def test_a_section_that_fails_between_its_tasks_keeps_what_it_has():
    def section(sizes):
        yield works(1)
        raise OSError("gone")

    assert [list(event) for event in events(section)] == [["figure"], ["error"]]


def test_a_section_begins_nothing_after_its_time():
    def section(sizes):
        yield works(1)
        time.sleep(0.05)
        yield works(2)

    first, second = events(section, seconds=0.02)
    assert first["figure"]["case"] == 1
    assert "case" in second["stopped"]


def test_a_line_that_was_cut_off_is_left_out():
    lines = [json.dumps({"figure": {"case": 1}}), json.dumps({"stopped": "time"}), '{"figure": {"ca']
    assert collect(lines) == {"figures": [{"case": 1}], "stopped": "time"}


def plan(tmp_path, sizes="rehearsal"):
    return Plan(sections=("device",), sizes=sizes, output=tmp_path / "gpu.json", seconds=60.0)


def test_a_process_that_dies_leaves_its_last_words(tmp_path):
    found = run_process(plan(tmp_path, sizes="none such"), "device", 60.0)
    assert found["figures"] == []
    assert found["error"]["message"] == "its process ended with code 2"
    assert "none such" in found["error"]["traceback"]


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "GRACE", 0.0)
    found = run_process(plan(tmp_path), "engine", 0.3)
    assert "hung" in found["error"]["message"]


def test_a_rehearsal_writes_figures_and_says_what_it_had_no_time_for(tmp_path, capfd, monkeypatch):
    output = tmp_path / "results" / "gpu.json"
    assert main(["--rehearse", "--sections", "device", "kv_write", "--output", str(output), "--minutes", "9"]) == 0
    result = json.loads(output.read_text())
    assert result["sizes"] == "rehearsal"
    (device,) = result["sections"]["device"]["figures"]
    assert (device["platform"], device["target"]) == ("cpu", "cpu")
    writes = result["sections"]["kv_write"]["figures"]
    assert [figure["implementation"] for figure in writes] == ["xla", "mosaic_gpu_interpreted"]
    assert all(figure["seconds"] > 0 and "error" not in figure for figure in writes)
    assert "say nothing about any GPU" in capfd.readouterr().out
    monkeypatch.setattr(running, "LEAST", 1e9)
    assert main(["--rehearse", "--sections", "device", "--output", str(output)]) == 0
    assert "no time was left" in json.loads(output.read_text())["sections"]["device"]["stopped"]


def test_the_first_command_has_time_for_all_of_its_sections():
    assert sum(SECTIONS[name].seconds for name in FIRST) <= 60 * MINUTES
    assert MINUTES + running.GRACE / 2 / 60 < 10


def test_more_measures_what_has_no_figures_and_keeps_the_rest(tmp_path, monkeypatch):
    output = tmp_path / "gpu.json"
    sections: dict[str, Any] = {name: {"figures": [{"seconds": 1.0}]} for name in SECTIONS if name not in ("saved", "tiles")}
    sections["saved"] = {"figures": [], "stopped": "no time was left for it"}
    earlier = {"command": "before", "date": "", "sizes": "full", "only_xla_after": "decode", "sections": sections}
    output.write_text(json.dumps(earlier))
    ran = []

    def process(plan, name, left):
        ran.append((name, list(plan.flags)))
        return {"figures": []}

    monkeypatch.setattr(running, "run_process", process)
    monkeypatch.setattr(report, "text", lambda result: "")
    main(["--more", "--output", str(output)])
    assert ran == [(name, ["--attention-kernel", "auto", "--only-xla"]) for name in ("engine", "saved", "tiles")], (
        "saved programs are those of the engine in the same run"
    )
    written = json.loads(output.read_text())
    assert written["command"].startswith("before && python -m benchmarks.gpu")
    assert written["sections"]["decode"] == sections["decode"]
    assert unmeasured(written) == ["engine", "saved", "tiles"]


def test_without_a_gpu_nothing_of_its_sizes_is_begun(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    output = tmp_path / "gpu.json"
    assert main(["--sections", "device", "bandwidth", "--output", str(output)]) == 1
    sections = json.loads(output.read_text())["sections"]
    assert "jax finds no GPU" in sections["device"]["error"]["message"]
    assert sections["bandwidth"] == {"figures": [], "stopped": "there is no GPU"}


def test_a_section_that_fails_is_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "GRACE", 0.0)
    monkeypatch.setattr(running, "LEAST", 0.0)
    assert main(["--rehearse", "--sections", "device", "--output", str(tmp_path / "gpu.json"), "--minutes", "0.005"]) == 1


@pytest.mark.parametrize(
    ("found", "flags"),
    [
        (
            {"figures": [{"error": {"type": "XlaRuntimeError", "message": "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS"}}]},
            ["--only-xla"],
        ),
        ({"figures": [], "error": {"type": "process", "message": "it hung", "traceback": ""}}, ["--only-xla"]),
        ({"figures": [{"error": {"type": "ValueError", "message": "too large"}}]}, []),
        ({"figures": [], "error": {"type": "ValueError", "message": "too large", "traceback": ""}}, []),
    ],
)
def test_after_a_kernel_crashed_only_xla_runs(tmp_path, monkeypatch, found, flags):
    given = []

    def process(plan, name, left):
        given.append((name, list(plan.flags)))
        return {"figures": []} if name == "device" else found

    monkeypatch.setattr(running, "run_process", process)
    result = running.run(Plan(sections=("device", "parity", "engine"), sizes="full", output=tmp_path / "gpu.json", seconds=60.0))
    assert given == [("device", []), ("parity", []), ("engine", flags)]
    assert result.get("only_xla_after") == ("parity" if flags else None)
    assert json.loads((tmp_path / "gpu.json").read_text()) == result


def test_only_xla_leaves_the_kernels_out(tmp_path):
    found = run_process(replace(plan(tmp_path), flags=("--only-xla",)), "tiles", 60.0)
    assert [figure["skipped"] for figure in found["figures"]] == ["its kernels are not run"]


def test_without_results_the_report_says_that_there_was_no_run(tmp_path, capsys):
    assert main(["--report", "--output", str(tmp_path / "gpu.json")]) == 1
    assert "No GPU run has been made" in capsys.readouterr().out
