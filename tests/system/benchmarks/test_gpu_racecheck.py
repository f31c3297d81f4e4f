"""Kernels under a stand-in for NVIDIA's racecheck, which runs what it is given and says what the tool would."""

from dataclasses import replace

import pytest

from benchmarks.gpu import racecheck, report
from benchmarks.gpu.sizes import REHEARSAL

RACY = """========= Error: Race reported between Read access at 0x63 in kernel
=========     and Write access at 0x1f in kernel [8 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""


def measured(tmp_path, monkeypatch, script):
    tool = tmp_path / racecheck.TOOL
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(racecheck, "CALLS", {"kv_write": ("kv_write", "any slots")})
    (task,) = racecheck.tasks(REHEARSAL)
    assert task.labels == {"call": "kv_write", "implementation": "mosaic_gpu_interpreted"}
    return task.labels | task.measure()


def test_a_call_runs_under_the_tool_and_its_races_are_told(tmp_path, monkeypatch):
    figure = measured(tmp_path, monkeypatch, f'shift 2; "$@"; cat <<END\n{RACY}END')
    assert (figure["hazards"], figure["errors"], figure["warnings"]) == (2, 1, 1)
    assert figure["races"] == ["Race reported between Read access at 0x63 in kernel"]
    result = {"sizes": "full", "date": "", "sections": {"racecheck": {"figures": [figure]}}}
    assert "| kv_write | mosaic_gpu_interpreted | 2 | 1 | 1 | Race reported between" in report.text(result)


@pytest.mark.parametrize(
    ("script", "message"),
    [("exit 3", "no summary, exit code 3"), ('echo "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"', "result")],
)
def test_a_call_that_was_not_made_is_no_clean_one(tmp_path, monkeypatch, script, message):
    with pytest.raises(RuntimeError, match=message):
        measured(tmp_path, monkeypatch, script)


def test_without_the_tool_or_the_kernels_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(racecheck, "find_tool", lambda: None)
    (task,) = racecheck.tasks(REHEARSAL)
    assert "there is no compute-sanitizer" in task.measure()["skipped"]
    monkeypatch.setattr(racecheck, "find_tool", lambda: tmp_path)
    (task,) = racecheck.tasks(replace(REHEARSAL, kernels=("xla",)))
    assert "not run" in task.measure()["skipped"]
