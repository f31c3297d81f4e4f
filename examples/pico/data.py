"""Training rows: conversations about synthetic tasks, packed, and stretches of the standard library's source."""

import sysconfig
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random

import numpy as np
from forms import json_turns, thinking_turns
from numpy.typing import NDArray
from tasks import SYSTEM_MESSAGES, Source
from tokenizer import Codec
from tools import Turn, plain_turns, with_tools

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]

# Not worth a small model's time: tests, character tables, generated documentation, and other people's packages.
SKIP = {"test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "site-packages", "__pycache__", "turtledemo"}
PROMPT_WEIGHT = 0.05
MISSES = 12  # conversations tried for the end of a row before code fills it
MAX_LINE = 160
SHORT = 24  # fewer tokens of code than this only fill a row: guessing without context teaches little


def stdlib_files() -> list[str]:
    """The texts of the running interpreter's standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(root.rglob("*.py")):
        if SKIP.isdisjoint(path.relative_to(root).parts):
            text = path.read_text(encoding="utf-8", errors="ignore").replace("\t", "    ")
            if text and max(map(len, text.splitlines())) <= MAX_LINE:
                texts.append(text)
    return texts


def words_of(texts: list[str], count: int) -> list[str]:
    """The most common lower-case words of 3 to 9 ASCII letters."""
    counter: Counter[str] = Counter()
    for text in texts:
        counter.update(w for w in "".join(c if c.isalpha() else " " for c in text).split() if 3 <= len(w) <= 9)
    return [w for w, _ in counter.most_common() if w.isascii() and w.islower()][:count]


def pieces_of(codec: Codec) -> list[str]:
    """The tokens that are lower-case letters only, so that tasks can teach how each is spelled."""
    vocab = codec.tokenizer.get_vocab()
    return sorted(t for t in vocab if t.isascii() and t.isalpha() and t.islower() and len(t) <= 6)


@dataclass(frozen=True)
class Shares:
    """Of conversations: those with tools, those that think, those that answer in JSON. The others are plain tasks."""

    tools: float = 0.0
    thinking: float = 0.0
    json: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Rows of inputs and targets; ``weights`` of the loss, ``segments`` numbering each row's documents."""

    inputs: IntArray
    targets: IntArray
    weights: FloatArray
    segments: IntArray


class Corpus:
    """Draws batches. They depend on seed, step and shape alone, so a resumed run sees what it would have seen."""

    def __init__(self, codec: Codec, texts: list[str], seed: int, shares: Shares) -> None:
        self.codec, self.seed, self.shares = codec, seed, shares
        self.source = Source(words_of(texts, 8000), pieces_of(codec))
        files = [[*codec.text(text), codec.eos] for text in texts]
        self.python = np.array([i for ids in files for i in ids], np.int32)
        newline = {i for t, i in codec.tokenizer.get_vocab().items() if t.endswith("Ċ")} | {codec.eos}
        self.starts = np.flatnonzero(np.isin(self.python, list(newline)))[:-1] + 1

    def chat(self, rng: Random, longest: int) -> tuple[list[int], list[float]]:
        """A conversation, of at most ``longest`` turns if it is plain, perhaps with a system message, and its loss weights."""
        codec = self.codec
        system = rng.choice(SYSTEM_MESSAGES) if rng.random() < 0.12 else ""
        kind = rng.random()
        turns = [Turn("system", system)] if system else []
        if kind < self.shares.tools:
            turns = with_tools(rng, self.source, system)
        elif kind < self.shares.tools + self.shares.thinking:
            turns = thinking_turns(rng, self.source, system)
        elif kind < sum(astuple(self.shares)):
            turns += json_turns(rng, self.source)
        else:
            for _ in range(rng.randint(1, longest) if rng.random() < 0.3 else 1):
                turns += plain_turns(rng, self.source)
        ids, weights = [codec.bos], [0.0]
        for turn in turns:
            turn_ids, turn_weights = self.turn(turn)
            ids, weights = ids + turn_ids, weights + turn_weights
        return ids, weights

    def turn(self, turn: Turn) -> tuple[list[int], list[float]]:
        """The tokens of a turn and their loss weights."""
        codec = self.codec
        before = [] if turn.role is None else [codec.roles[turn.role]]
        text = codec.spelled(turn.text) if turn.spelled else codec.text(turn.text)
        after = [codec.eos] if turn.ends else []
        asked = PROMPT_WEIGHT if turn.role == "user" else 0.0
        if turn.only:
            middle = [1.0 if inside else 0.0 for inside in codec.within(turn.text, turn.only)]
            return [*before, *text, *after], [asked] * len(before) + middle + [0.0] * len(after)
        weight = 1.0 if turn.learned else asked
        opening = PROMPT_WEIGHT if turn.role == "assistant" else asked
        return [*before, *text, *after], [opening] * len(before) + [weight] * len(text + after)

    def code(self, rng: Random, length: int) -> list[int]:
        """A begin token and the ``length - 1`` tokens that follow some line start of the library."""
        start = int(self.starts[rng.randrange(len(self.starts))])
        start = min(start, len(self.python) - length)
        return [self.codec.bos, *self.python[start : start + length - 1].tolist()]

    def row(self, rng: Random, length: int, chat_share: float) -> tuple[list[int], list[float], list[int]]:
        """One packed row: conversations until the next ones do not fit, and code in what is left."""
        ids: list[int] = []
        weights: list[float] = []
        segments: list[int] = []
        if rng.random() < chat_share:
            misses = 0
            while misses < MISSES and length - len(ids) >= SHORT // 2:
                chat_ids, chat_weights = self.chat(rng, longest=max(2, length // 40))
                if len(ids) + len(chat_ids) > length:
                    misses += 1
                    continue
                segments += [segments[-1] + 1 if segments else 0] * len(chat_ids)
                ids, weights = ids + chat_ids, weights + chat_weights
        rest = length - len(ids)
        if rest:
            ids += self.code(rng, rest)
            weights += [0.0] + [1.0 if rest > SHORT else 0.0] * (rest - 1)
            segments += [segments[-1] + 1 if segments else 0] * rest
        return ids, weights, segments

    def batch(self, step: int, rows: int, length: int, chat_share: float) -> Batch:
        """The batch of a step, about ``chat_share`` of whose rows hold conversations."""
        rng = Random(f"{self.seed}/{step}")
        drawn = [self.row(rng, length + 1, chat_share) for _ in range(rows)]
        ids = np.array([r[0] for r in drawn], np.int32)
        weights = np.array([r[1] for r in drawn], np.float32)
        segments = np.array([r[2] for r in drawn], np.int32)
        # The last token of a document has no next one: the begin token of another is no target.
        return Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:] * (segments[:, 1:] == segments[:, :-1]), segments[:, :-1])
