"""Requests of the batch benchmarks, as lines of an OpenAI batch file, and the 150M checkpoint with a tokenizer for them.

Every token is a word of three letters, so that prompts are text of a known number of tokens. All lines ask for greedy outputs of
a set length (`ignore_eos`): what is computed is the same whoever computes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks import llama150m

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEF"
_FIRST_WORD = 3  # below are the model's special tokens
VOCABULARY = int(str(llama150m.CONFIG["vocab_size"]))


def word(token: int) -> str:
    """A token's text."""
    return " " + _LETTERS[token >> 10] + _LETTERS[token >> 5 & 31] + _LETTERS[token & 31]


def write_checkpoint(directory: Path, config: Mapping[str, Any] = llama150m.CONFIG) -> Path:
    """A directory with config.json and tokenizer; weights are made from a seed (`--load-format dummy`)."""
    llama150m.write_config(directory, config)
    words = {word(token).replace(" ", "Ġ"): token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a file of requests holds.

    Attributes:
        requests: lines.
        prompt_tokens, output_tokens: medians; log-normal with sigmas `prompt_sigma`, `output_sigma` (0: all alike).
        prefixes: prompts begin with one of so many shared prefixes of `prefix_tokens` tokens; 0 for none.
        longest_prompt, longest_output: where the distributions are cut off.
        seed: of lengths, words, and the order of lines, which has nothing to do with prefixes.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    prompt_sigma: float = 0.0
    output_sigma: float = 0.0
    prefixes: int = 0
    prefix_tokens: int = 0
    longest_prompt: int = 1024
    longest_output: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One line: token ids of the prompt, and how many tokens the output has."""

    number: int
    prompt: tuple[int, ...]
    output: int

    def line(self, model: str) -> dict[str, Any]:
        """As a line of a batch file."""
        body = {
            "model": model,
            "prompt": "".join(map(word, self.prompt)),
            "max_tokens": self.output,
            "temperature": 0,
            "ignore_eos": True,
        }
        return {"custom_id": f"request-{self.number}", "method": "POST", "url": "/v1/completions", "body": body}


def requests(workload: Workload) -> Iterator[Request]:
    """The requests, in the order of the file."""
    random = Random(workload.seed)
    prefixes = [_words(random, workload.prefix_tokens) for _ in range(workload.prefixes)]
    for number in range(workload.requests):
        prompt = _length(random, workload.prompt_tokens, workload.prompt_sigma, workload.longest_prompt)
        output = _length(random, workload.output_tokens, workload.output_sigma, workload.longest_output)
        shared = random.choice(prefixes) if prefixes else ()
        yield Request(number, shared + _words(random, prompt), output)


def write_lines(path: Path, wanted: Sequence[Request], model: str) -> Path:
    """Write a batch file; returns its path."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(request.line(model)) + "\n" for request in wanted)
    return path


def _words(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.choices(range(_FIRST_WORD, VOCABULARY), k=count))


def _length(random: Random, median: int, sigma: float, longest: int) -> int:
    return max(1, min(longest, round(random.lognormvariate(math.log(median), sigma))))
