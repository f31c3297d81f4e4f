"""What a family costs: the lines that are counted, and the table that is made of the results."""

import json
from pathlib import Path

import pytest

from benchmarks import families
from benchmarks.pages import markdown, with_table
from jaxserve.models.registry import FAMILIES

EXPERTS = {
    "llama4_text",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "granitemoehybrid",
    "qwen3_5_moe_text",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "minimax_m2",
    "lfm2_moe",
}
ROOT = Path(families.__file__).parents[1]


def test_the_page_has_the_table_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "families.json").read_text())
    assert list(results["families"]) == list(FAMILIES)
    page = (ROOT / families.PAGE).read_text()
    assert with_table(page, families.NAME, families.table(results)) == page


def test_lines_of_code_are_neither_blank_nor_words() -> None:
    source = '"""Words\nand more."""\n\n# a comment\nX = (\n    1,  # one\n)\n\n\n'
    source += 'def f(x):\n    """Words."""\n    return """\n\ntext"""\n'
    assert families.code_lines(source) == 3 + 1 + 3


def test_every_family_is_measured_at_the_same_depth(tmp_path: Path) -> None:
    """Of every family a decoder of four layers, with experts and windows where the family has them."""
    for family in FAMILIES.values():
        decoder = families.lowering_of(family, tmp_path).config
        assert (decoder.num_layers, decoder.hidden_size) == (families.LAYERS, 1024)
        assert (decoder.experts is not None) == (family.model_type in EXPERTS)


def test_a_page_without_a_place_is_refused() -> None:
    assert with_table("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb", "x", markdown(["n"], [[1]])) == (
        "a\n<!-- x: begin -->\n| n |\n| --- |\n| 1 |\n<!-- x: end -->\nb"
    )
    for page in ("", "<!-- x: end --><!-- x: begin -->"):
        with pytest.raises(ValueError, match="no place for x"):
            with_table(page, "x", "")
