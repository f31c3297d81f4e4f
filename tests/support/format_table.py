"""Writes docs/formats.md from the tests' own words: python -m tests.support.format_table.

A test says which format it is about by `@pytest.mark.format(AREA, FORMAT, READ or REFUSED)`; parts of the tokenizers library come
from the tables of its contract test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pages import markdown
from tests.contract.tokenizer import test_library_parts as parts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "formats.md"
READ, REFUSED = "read", "refused"
AREAS = {
    "tokenizers": "Tokenizers",
    "chat": "Chat templates and messages",
    "config": "config.json",
    "weights": "Weights",
    "quantized": "Quantized weights",
    "adapters": "Adapters (LoRA)",
    "embedders": "Embedders and rerankers",
}
_HEAD = """# Formats

What is read of other programs' files, as they read it, and what is refused with the file, the field and its value. Made from the
tests that hold it by `python -m tests.support.format_table`. Families of models are in [models.md](models.md), weights in
[weights.md](weights.md).
"""

Row = tuple[str, str, str, str]  # area, format, outcome, test


def page() -> str:
    """The whole page."""
    rows = [*_library_parts(), *_marked()]
    unknown = {area for area, *_ in rows} - AREAS.keys() | {outcome for _, _, outcome, _ in rows} - {READ, REFUSED}
    if unknown:
        raise ValueError(f"neither an area nor an outcome: {sorted(unknown)}")
    tables = [
        f"## {title}\n\n{markdown(['format', '', 'test'], [row[1:] for row in rows if row[0] == area])}\n"
        for area, title in AREAS.items()
    ]
    return "\n".join([_HEAD, *tables])


def _library_parts() -> Iterator[Row]:
    test = f"`{Path(parts.__file__).relative_to(ROOT)}`"
    for kind, table in (
        ("decoder", parts.DECODERS),
        ("normalizer", parts.NORMALIZERS),
        ("pre-tokenizer", parts.PRE_TOKENIZERS),
        ("post-processor", parts.PROCESSORS),
    ):
        yield "tokenizers", f"{kind}s {', '.join(f'`{name}`' for name in table)}", READ, test
    yield "tokenizers", f"decoders {', '.join(f'`{name}`' for name in parts.REFUSED)}", REFUSED, test


def _marked() -> Iterator[Row]:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        if "mark.format(" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for area, what, outcome in _marks_of(function):
                    yield area, what, outcome, f"`{file.relative_to(ROOT)}::{function.name}`"


def _marks_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str, str]]:
    for decorator in reversed(function.decorator_list):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.format":
            area, what, outcome = (ast.literal_eval(argument) for argument in decorator.args)
            yield area, what, outcome


if __name__ == "__main__":
    PAGE.write_text(page())
