"""Makes tests/data/tokenizers/families.json, what transformers' AutoTokenizer says: python -m tests.golden.make_tokenizers

Needs the `parity` extra. The tokenizers are those of tests/data/tokenizers/families.py; nothing in them is random.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.data.tokenizers import families


def main() -> None:
    """Ask each tokenizer, and write what it says."""
    with tempfile.TemporaryDirectory() as folder:
        said = {name: ask(families.write_family(Path(folder) / name, name)) for name in families.FAMILIES}
    file = Path(families.__file__).with_suffix(".json")
    file.write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def ask(folder: Path) -> dict[str, Any]:
    """Its special tokens, and of every text the ids with and without special tokens, and what they decode to."""
    theirs = AutoTokenizer.from_pretrained(folder)
    special = sorted(set(theirs.all_special_tokens))
    texts = [*families.TEXTS, *(f"hello{token} world {token}  again" for token in theirs.get_added_vocab())]
    answers = []
    for text in texts:
        whole, bare = theirs.encode(text), theirs.encode(text, add_special_tokens=False)
        answers.append(
            {
                "text": text,
                "ids": whole,
                "bare": bare,
                "decoded": theirs.decode(whole, skip_special_tokens=True),
                "written": theirs.decode(whole, skip_special_tokens=False),
            }
        )
    return {"bos": theirs.bos_token_id, "eos": theirs.eos_token_id, "special": special, "answers": answers}


if __name__ == "__main__":
    main()
