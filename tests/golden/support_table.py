"""Writes the table of families in docs/models.md from what tests passed: python -m tests.golden.support_table JUNIT.xml ...

    python -m pytest --junitxml=JUNIT.xml tests/golden tests/integration/engine/test_golden.py \
        tests/integration/executor/test_gpt_oss.py tests/contract/tokenizer/test_families.py \
        tests/integration/planner/test_bytes.py

A cell is the tests of that name that passed for the family's golden checkpoints; all of them are in
benchmarks/results/support.json by name. With a failed test among them nothing is written.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import markdown, with_table
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import FAMILIES, Family, decoder_config
from tests.data.tokenizers.families import OF_MODEL_TYPE
from tests.golden.cases import CASES, Case
from tests.golden.reading import DATA

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "support.json"
PAGE = ROOT / "docs" / "models.md"
NAME = "tests/golden/support_table.py"
MODELS = {
    "LlamaForCausalLM": "Llama 1 to 3.3, and what is published in its format",
    "Llama4ForCausalLM": "Llama 4 Scout and Maverick, text",
    "MistralForCausalLM": "Mistral 7B, Nemo, Small",
    "Ministral3ForCausalLM": "Ministral 3",
    "Cohere2ForCausalLM": "Command A, Command R7B",
    "Qwen2ForCausalLM": "Qwen2, Qwen2.5",
    "Qwen3ForCausalLM": "Qwen3",
    "Gemma2ForCausalLM": "Gemma 2",
    "Gemma3ForCausalLM": "Gemma 3, text",
    "Gemma4ForCausalLM": "Gemma 4 E2B, E4B, 26B-A4B, 31B, text",
    "Gemma4UnifiedForCausalLM": "Gemma 4 12B, text",
    "Phi3ForCausalLM": "Phi-3, Phi-4",
    "Olmo2ForCausalLM": "OLMo 2",
    "Olmo3ForCausalLM": "OLMo 3",
    "SmolLM3ForCausalLM": "SmolLM3",
    "GraniteForCausalLM": "Granite 3",
    "SeedOssForCausalLM": "Seed-OSS",
    "MixtralForCausalLM": "Mixtral 8x7B, 8x22B",
    "Qwen2MoeForCausalLM": "Qwen1.5-MoE, Qwen2-MoE",
    "Qwen3MoeForCausalLM": "Qwen3-MoE",
    "GptOssForCausalLM": "gpt-oss",
    "DeepseekV2ForCausalLM": "DeepSeek-V2",
    "DeepseekV3ForCausalLM": "DeepSeek-V3, R1",
    "DeepseekV32ForCausalLM": "DeepSeek-V3.2",
    "GlmForCausalLM": "GLM-4",
    "Glm4ForCausalLM": "GLM-4-0414, GLM-Z1",
    "Glm4MoeForCausalLM": "GLM-4.5, 4.6, 4.7",
    "Glm4MoeLiteForCausalLM": "GLM-4.7-Flash",
    "GlmMoeDsaForCausalLM": "GLM-5 to 5.2",
    "MiniMaxM2ForCausalLM": "MiniMax-M2",
    "Qwen3NextForCausalLM": "Qwen3-Next",
    "Qwen3_5ForCausalLM": "Qwen3.5 to 3.8, text",
    "Qwen3_5MoeForCausalLM": "Qwen3.5 to 3.8 with experts, text",
    "GraniteMoeHybridForCausalLM": "Granite 4",
    "NemotronHForCausalLM": "Nemotron-H, Nemotron Nano 2, Nemotron 3",
    "Lfm2ForCausalLM": "LFM2",
    "Lfm2MoeForCausalLM": "LFM2 with experts",
}

Support = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Column:
    """What a family may support.

    Attributes:
        title: of the column.
        test: the test function whose parameter begins with a golden checkpoint's name.
        wanted: which of the checkpoints it is about; a family that has none of them has no such thing.
    """

    title: str
    test: str
    wanted: Callable[[Case, DecoderConfig], bool] = lambda case, config: True


COLUMNS = (
    Column("logits and 64 tokens", "test_logits_and_greedy_tokens"),
    Column("in chunks, with prefix hits and preemption", "test_greedy_tokens"),
    Column("on several devices", "test_logits_do_not_depend_on_the_mesh"),
    Column("sliding window", "test_greedy_tokens", lambda case, config: any(config.windows)),
    Column("quantized checkpoint", "test_logits_and_greedy_tokens", lambda case, config: case.stored != "plain"),
    Column("planned to the byte", "test_every_golden_checkpoint"),
)
TOKENIZER = "tokenizer"


def passed_tests(junit: Path) -> list[str]:
    """Names of the tests that passed, as pytest writes them. Raises ValueError naming those that did not."""
    passed: list[str] = []
    others: list[str] = []
    for case in ET.parse(junit).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        ended = {child.tag for child in case} & {"failure", "error", "skipped"}
        (passed if not ended else others if ended != {"skipped"} else []).append(name)
    if others:
        raise ValueError(f"not passed: {', '.join(others)}")
    return passed


def support(passed: list[str]) -> Support:
    """Architecture -> title of a column -> the tests that fill its cell; no entry for what a family does not have."""
    return {name: dict(_cells(family, passed)) for name, family in FAMILIES.items()}


def _cells(family: Family, passed: list[str]) -> Iterator[tuple[str, list[str]]]:
    cases = [case for case in CASES if case.model_type == family.model_type]
    configs = {case.name: decoder_config(read_hf_config(DATA / case.name)) for case in cases}
    for column in COLUMNS:
        names = [case.name for case in cases if column.wanted(case, configs[case.name])]
        if names:
            yield column.title, [test for test in passed if _is_of(test, column.test, names)]
    yield TOKENIZER, [test for test in passed if test.endswith(f"::test_texts[{OF_MODEL_TYPE.get(family.model_type)}]")]


def _is_of(test: str, function: str, names: list[str]) -> bool:
    name, _, parameters = test.partition("::")[2].rstrip("]").partition("[")
    return name == function and any(parameters == each or parameters.startswith(f"{each}-") for each in names)


def table(found: Mapping[str, Mapping[str, list[str]]]) -> str:
    """The table: how many tests passed; a dash for what a family does not have, nothing where nothing passed."""
    titles = [*(column.title for column in COLUMNS), TOKENIZER]
    rows = [
        [f"{MODELS[name]} (`{name}`)", *(str(len(cells[title]) or "") if title in cells else "–" for title in titles)]
        for name, cells in found.items()
    ]
    return markdown(["family", *titles], rows)


def main(*junits: str) -> None:
    """Write results and table."""
    found = support(list(dict.fromkeys(test for junit in junits for test in passed_tests(Path(junit)))))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), NAME, table(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
