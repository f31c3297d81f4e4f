"""The bundled tokenizer, alone and with the markup of all families as special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer

import jaxserve

_FILE = Path(jaxserve.__file__).parent / "assets" / "pico" / "tokenizer.json"
MARKUP = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<|python_start|>", "<|python_end|>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|channel|>", "<|message|>", "<|constrain|>",
    "<|start|>", "<|call|>", "<|return|>", "<|tool_call|>", "<|/tool_call|>", "<|tool_call>", "<tool_call|>",
    "<|channel>", "<channel|>", '<|"|>', "<start_function_call>", "<end_function_call>", "<escape>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<minimax:tool_call>",
    "｜DSML｜", "<|tool_call_start|>", "<TOOLCALL>", "</TOOLCALL>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>",
    "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>",
    "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>",
]  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: Tokenizer
    guidance: LLTokenizer
    special: Mapping[str, int]
    end_tokens: tuple[str, ...]  # of them, those that end a response beside EOS

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, tokens: list[int], *, ended: bool = True) -> str:
        """With the special tokens in it; without half a character at the end, which there may be if it has not ended."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="strict" if ended else "ignore")

    def bytes_of(self, token: int) -> bytes:
        name = next((name for name, number in self.special.items() if number == token), None)
        return self.guidance.decode_bytes([token]) if name is None else name.encode()


def _vocabulary(special: list[str], end_tokens: tuple[str, ...]) -> Vocabulary:
    tokenizer = Tokenizer.from_file(str(_FILE))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    ids = {text: token for text in [*special, "<|end|>"] if (token := tokenizer.token_to_id(text)) is not None}
    return Vocabulary(tokenizer, LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<|pad|>")), ids, end_tokens)


PLAIN = _vocabulary([], ())
SPECIAL = _vocabulary(MARKUP, ("<|call|>",))
