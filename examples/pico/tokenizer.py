"""The tokenizer: byte-level BPE with single digits and spelled-out quoted words, special tokens, a chat template."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [PAD, BOS, EOS, *(f"<|{role}|>" for role in ROLES)]

# A letter of a word before a double quote: quoted words are spelled out, which makes tasks about letters learnable.
# Then words with their leading space, one digit, punctuation with the line end after it, line ends, other white space.
PATTERN = r"\p{L}(?=\p{L}*\")| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Tools are listed by their names and parameters alone, as a call of them looks: a small context has no room for more.
CHAT_TEMPLATE = (
    "{%- macro listed(tool) -%}"
    """{{ '{"name": ' ~ (tool.name | tojson) ~ ', "arguments": {' }}"""
    "{%- for name, schema in ((tool.parameters or {}).properties or {}).items() -%}"
    "{{ (', ' if not loop.first else '') ~ (name | tojson) ~ ': ' ~ ((schema.enum or schema.type or 'any') | tojson) }}"
    "{%- endfor -%}"
    "{{ '}}' }}"
    "{%- endmacro -%}"
    "{{ bos_token }}"
    "{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' -%}"
    "{%- set messages = messages[1:] if messages[0].role == 'system' else messages -%}"
    "{%- if tools -%}"
    "{{ '<|system|>' ~ (system ~ '\\n' if system else '') ~ '<tools>\\n' }}"
    "{%- for tool in tools %}{{ listed(tool.function or tool) ~ '\\n' }}{% endfor -%}"
    "{{ '</tools><|end|>' }}"
    "{%- elif system -%}"
    "{{ '<|system|>' ~ system ~ '<|end|>' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '\\n' if loop.previtem and loop.previtem.role == 'tool' else '<|user|>' }}"
    "{{ '<tool_response>\\n' ~ (message.content | trim) ~ '\\n</tool_response>' }}"
    "{{ '<|end|>' if not (loop.nextitem and loop.nextitem.role == 'tool') }}"
    "{%- elif message.role in ['system', 'user', 'assistant'] -%}"
    "{{ '<|' ~ message.role ~ '|>' ~ ((message.content or '') | trim) }}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{ '\\n' if message.content or not loop.first }}"
    """{{ '<tool_call>\\n{"name": ' ~ (call.function.name | tojson) ~ ', "arguments": ' }}"""
    "{% set arguments = call.function.arguments %}"
    "{{ (arguments if arguments is string else arguments | tojson) ~ '}\\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|end|>' }}"
    "{%- else -%}"
    "{{ raise_exception('Unknown role: ' ~ message.role) }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{{ ('<|assistant|><think>\\n' if enable_thinking else '<|assistant|>') if add_generation_prompt }}"
)
# How to read what the model answers, as transformers has it.
RESPONSE_TEMPLATE = {
    "start_anchor": "<|assistant|>",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "writes": {"close": "\n</think>\n\n"}},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
            "writes": {  # which is jaxserve's own
                "trigger": "<tool_call>",
                "call": '<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>',
                "between": "\n",
            },
        },
        "content": {},
    },
}


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn merges from ``texts``; every byte has a token, so any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **names,
        "chat_template": CHAT_TEMPLATE,
        "response_template": RESPONSE_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")


class Codec:
    """Token ids of the pieces that training documents and prompts are made of."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pad, self.bos, self.eos = (SPECIAL_TOKENS.index(t) for t in (PAD, BOS, EOS))
        self.roles = {role: SPECIAL_TOKENS.index(f"<|{role}|>") for role in ROLES}
        alphabet = {chr(b): tokenizer.encode(chr(b), add_special_tokens=False).ids for b in range(128)}
        self._letters = {c: ids[0] for c, ids in alphabet.items() if len(ids) == 1}

    def text(self, text: str) -> list[int]:
        """Plain encoding, without the begin token."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def spelled(self, text: str) -> list[int]:
        """One token per ASCII character: what the model is taught to answer with when an answer is about letters."""
        if all(c in self._letters for c in text):
            return [self._letters[c] for c in text]
        return self.text(text)

    def within(self, text: str, parts: Sequence[str]) -> list[bool]:
        """Of each token of the plain encoding: whether it lies in one of the parts, which are in the text one after another."""
        spans, end = [], 0
        for part in parts:
            start = text.index(part, end)
            end = start + len(part)
            spans.append((start, end))
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        return [any(start < last and first < end for start, end in spans) for first, last in offsets]

    def prompt(self, messages: list[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation of (role, content) pairs up to the assistant's turn, as the template renders."""
        ids = [self.bos]
        for role, content in messages:
            ids += [self.roles[role], *self.text(content), self.eos]
        return [*ids, self.roles["assistant"]]
