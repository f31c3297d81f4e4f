"""The table of families is what tests passed, and names every family."""

import json
from pathlib import Path

import pytest

from benchmarks.pages import with_table
from jaxserve.models.registry import FAMILIES
from tests.data.tokenizers.families import FAMILIES as TOKENIZERS
from tests.data.tokenizers.families import OF_MODEL_TYPE
from tests.golden import support_table as made

GOLDEN = "tests/golden/test_golden.py::test_logits_and_greedy_tokens"
ENGINE = "tests/integration/engine/test_golden.py::test_greedy_tokens"
MESH = "tests/golden/test_golden.py::test_logits_do_not_depend_on_the_mesh"


def test_the_table_is_that_of_the_results_and_has_every_family() -> None:
    found = json.loads(made.RESULTS.read_text())
    assert list(found) == list(FAMILIES) == list(made.MODELS)
    page = made.PAGE.read_text()
    assert with_table(page, made.NAME, made.table(found)) == page


def test_every_test_in_the_results_is_there() -> None:
    found = json.loads(made.RESULTS.read_text())
    names = {test for cells in found.values() for tests in cells.values() for test in tests}
    for name in names:
        file, _, call = name.partition("::")
        assert f"def {call.partition('[')[0]}(" in (made.ROOT / file).read_text(), name


def test_every_family_passes_what_it_has() -> None:
    found = json.loads(made.RESULTS.read_text())
    empty = {(name, title) for name, cells in found.items() for title, tests in cells.items() if not tests}
    unknown = {name for name, family in FAMILIES.items() if family.model_type not in OF_MODEL_TYPE}
    assert empty == {(name, made.TOKENIZER) for name in unknown}
    assert all(len(cells) >= len(made.COLUMNS) - 1 for cells in found.values())


def test_a_cell_is_what_passed_for_the_familys_checkpoints() -> None:
    passed = [f"{GOLDEN}[mistral-full]", f"{ENGINE}[mistral-full]", f"{MESH}[mistral-window-4-1]", f"{GOLDEN}[qwen2-yarn]"]
    passed += ["tests/contract/tokenizer/test_families.py::test_texts[mixtral]", "x.py::test_something[mistral-full]"]
    found = made.support(passed)
    assert found["MistralForCausalLM"] == {
        "logits and 64 tokens": [passed[0]],
        "in chunks, with prefix hits and preemption": [passed[1]],
        "on several devices": [passed[2]],
        "sliding window": [],
        "quantized checkpoint": [],
        "planned to the byte": [],
        "tokenizer": [passed[4]],
    }
    assert "sliding window" not in found["LlamaForCausalLM"]
    assert found["Qwen3ForCausalLM"]["quantized checkpoint"] == []
    (row,) = [line for line in made.table(found).splitlines() if "MistralForCausalLM" in line]
    assert row.endswith("| 1 | 1 | 1 |  |  |  | 1 |")


def test_what_failed_is_named_and_what_was_skipped_does_not_count(tmp_path: Path) -> None:
    case = '<testcase classname="tests.golden.test_golden" name="{}">{}</testcase>'
    report = tmp_path / "junit.xml"
    cases = [case.format("test_a[x]", ""), case.format("test_b", '<skipped message="no"/>')]
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert made.passed_tests(report) == ["tests/golden/test_golden.py::test_a[x]"]
    report.write_text(f"<testsuites><testsuite>{case.format('test_c', '<failure/>')}</testsuite></testsuites>")
    with pytest.raises(ValueError, match=r"not passed: tests/golden/test_golden\.py::test_c"):
        made.passed_tests(report)


def test_every_tokenizer_is_some_familys() -> None:
    assert OF_MODEL_TYPE.keys() <= {family.model_type for family in FAMILIES.values()}
    assert set(OF_MODEL_TYPE.values()) == TOKENIZERS.keys()
