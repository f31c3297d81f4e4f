"""The same ids and texts as transformers' AutoTokenizer."""

from pathlib import Path
from typing import Any

import pytest

from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from tests.data.tokenizers.samples import save_hugging_face, save_sentencepiece

pytestmark = pytest.mark.parity

TEXTS = [
    "hello world",
    "",
    "\nhi 😀",
    "<s>hello",
    "<s> hello</s>",
    "hello<tool call>world <|turn|> x <|turn|>y",
    "naïve  café 日本語 e\u0301",
    "x<｜end▁of｜>y",
]
# transformers 5 rebuilds a tokenizer.model with other parts, which put no second mark before a text that begins with a
# space: there only SentencePiece itself is the reference (see test_sentencepiece.py).
BEGINS_WITH_SPACE = "<s> hello</s>", "hello<tool call>world <|turn|> x <|turn|>y"


def added(content: str, *, special: bool) -> dict[str, object]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": special, **flags}


@pytest.mark.parametrize("kind", ["byte_level", "gemma_json", "llama_json"])
def test_tokenizer_json(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_hugging_face(
        tmp_path,
        kind,
        tokenizer_class="PreTrainedTokenizerFast",
        pad_token="<pad>",
        additional_special_tokens=["<|turn|>"],
        clean_up_tokenization_spaces=False,
    )
    check(load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path), TEXTS)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize("legacy", [True, False])
def test_sentencepiece(legacy: bool, flags: dict[str, bool], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "added_tokens_decoder": {"0": added("<unk>", special=True), "1": added("<s>", special=True)},
        "additional_special_tokens": ["<|turn|>"],
        "legacy": legacy,
    }
    save_sentencepiece(tmp_path, **config | {"add_bos_token": True} | flags)
    texts = [text for text in TEXTS if not (legacy and text in BEGINS_WITH_SPACE)]
    check(load_tokenizer(tmp_path), transformers.LlamaTokenizer.from_pretrained(tmp_path), texts)


CHAT = """{{- bos_token }}
{%- if tools is not none %}
    {{- tools | tojson(indent=2) }}
{%- endif %}
{% for message in messages %}
    {% if loop.first and message.role == 'system' %}{% continue %}{% endif %}
    {%- generation %}<|{{ message.role }}|>
{{ message['content'] | trim }}{{ eos_token }}
    {% endgeneration %}
{% endfor %}
{{ {'é': '<b>'} | tojson }}{{ thinking }}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""


@pytest.mark.parametrize("last", ["user", "assistant"])
@pytest.mark.parametrize("ending", ["prompt", "continue", "none"])
def test_chat_template(last: str, ending: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_hugging_face(tmp_path, tokenizer_class="PreTrainedTokenizerFast", chat_template=CHAT)
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": " hi\n"},
        {"role": last, "content": "well  "},
    ]
    options = {"add_generation_prompt": ending == "prompt", "continue_final_message": ending == "continue"}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(messages, tokenize=False, thinking=True, **options)
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render(messages, **options, arguments={"thinking": True}) == expected
    ids = theirs.apply_chat_template(messages, thinking=True, return_dict=False, **options)
    assert load_tokenizer(tmp_path).encode(expected, add_special_tokens=False) == ids


def check(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.special_token_ids >= set(theirs.all_special_ids)
    for text in texts:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids, text
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
