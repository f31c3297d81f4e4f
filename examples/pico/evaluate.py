"""Measure an exported model on held-out tasks; ``--out benchmarks/results/pico.json`` keeps the figures."""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from data import pieces_of, stdlib_files, words_of
from jax import Array
from model import Config, Params, forward
from safetensors.flax import load_file
from tasks import MAKERS, Source, Task, draw_person
from tokenizer import Codec
from tokenizers import Tokenizer
from tools import Question, response_turn, sum_question, system_turn

COUNTS = {"addition": 500, "reversal": 500, "subtraction": 200, "uppercase": 200, "addition/one_digit": 100,
          "digit_sort": 200, "letter_count": 200, "json_fill": 100, "small_talk": 50}  # fmt: skip
FIXED = {"What is 17 + 25?": "42", "17+25": "42", "17 + 25": "42", "What's 17 + 25": "42", "What's 17 + 25?": "42",
         "Please add 17 and 25.": "42", "what is 17 + 25": "42", "What is 17+25?": "42"}  # fmt: skip
CODE = ("def fibonacci(n):\n", "import os\nimport sys\n\ndef main():\n", "class Stack:\n    def __init__(self):\n",
        "def read_lines(path):\n    with open(path) as f:\n", "for i in range(10):\n")  # fmt: skip


class Model:
    """Greedy decoding by recomputing the whole sequence for every token: slow, and simple enough to trust."""

    def __init__(self, folder: Path) -> None:
        names = json.loads((folder / "config.json").read_text())
        self.config = Config(**{k: names[k] for k in Config.__dataclass_fields__})
        self.params: Params = {k: v.astype(jnp.float32) for k, v in load_file(folder / "model.safetensors").items()}
        self.codec = Codec(Tokenizer.from_file(str(folder / "tokenizer.json")))

        @jax.jit
        def next_tokens(params: Params, ids: Array, lengths: Array) -> Array:
            logits = forward(params, ids, self.config)
            return logits[jnp.arange(ids.shape[0]), lengths - 1].argmax(-1)

        self._next: Callable[[Array, Array], Array] = partial(next_tokens, self.params)

    def generate(self, prompts: list[list[int]], max_tokens: int, rows: int = 100) -> list[str]:
        """The continuation of each prompt up to the end token, as text."""
        answers: list[str] = []
        for first in range(0, len(prompts), rows):
            chunk = prompts[first : first + rows]
            lengths = np.array([len(p) for p in chunk])
            ids = np.full((len(chunk), -(-(int(lengths.max()) + max_tokens) // 32) * 32), self.codec.pad, np.int32)
            for i, prompt in enumerate(chunk):
                ids[i, : len(prompt)] = prompt
            ended = np.zeros(len(chunk), bool)
            for _ in range(max_tokens):
                tokens = np.asarray(self._next(jnp.asarray(ids), jnp.asarray(lengths)))
                ended |= tokens == self.codec.eos
                if ended.all():
                    break
                ids[np.arange(len(chunk)), lengths] = np.where(ended, self.codec.eos, tokens)
                lengths = lengths + ~ended
            for prompt, row, length in zip(chunk, ids, lengths, strict=True):
                answers.append(self.codec.tokenizer.decode(row[len(prompt) : length].tolist()))
        return answers


def held_out_tasks(codec: Codec, kind: str, count: int, words: list[str], seed: int) -> list[Task]:
    """Different tasks of one kind over pairs and words that training never showed."""
    maker, _, variant = kind.partition("/")
    source = Source(words, pieces_of(codec), held_out=True, one_digit=float(variant == "one_digit"))
    rng = Random(f"evaluate/{seed}/{kind}")
    tasks: dict[str, Task] = {}
    for _ in range(20 * count):
        task = MAKERS[maker](rng, source)
        tasks.setdefault(task.prompt, task)
        if len(tasks) == count:
            break
    return list(tasks.values())


def scored(kind: str, prompts: list[str], answers: list[str], expected: list[str]) -> dict[str, Any]:
    """Share of exact answers, with some of the wrong ones."""
    rows = zip(prompts, answers, expected, strict=True)
    wrong = [{"prompt": prompt, "answer": answer, "expected": right} for prompt, answer, right in rows if answer != right]
    accuracy = round(1 - len(wrong) / len(answers), 4)
    print(f"{kind:18} {accuracy:7.1%} of {len(answers)}", *wrong[:3], sep="\n    ", flush=True)
    return {"tasks": len(answers), "accuracy": accuracy, "wrong": wrong[:5]}


def measure(model: Model, scale: float, seed: int) -> dict[str, Any]:
    """Share of exact answers per kind of task, with some of the wrong answers."""
    words = words_of(stdlib_files(), 8000)
    results: dict[str, Any] = {}
    for kind, count in COUNTS.items():
        tasks = held_out_tasks(model.codec, kind, max(1, int(count * scale)), words, seed)
        prompts = [model.codec.prompt([("user", t.prompt)]) for t in tasks]
        answers = model.generate(prompts, 64 if kind in ("json_fill", "small_talk") else 16)
        results[kind] = scored(kind, [t.prompt for t in tasks], answers, [t.answer for t in tasks])
    return results


def tool_questions(count: int, words: list[str], codec: Codec, seed: int) -> list[Question]:
    """Questions about numbers that training never showed together, each with the calculator that answers it."""
    rng, source = Random(f"evaluate/{seed}/tools"), Source(words, pieces_of(codec), held_out=True)
    return [sum_question(rng, source) for _ in range(count)]


def measure_tools(model: Model, scale: float, seed: int) -> dict[str, Any]:
    """Share of exact calls, of answers from what a tool said, and of tasks that need none and are answered beside one."""
    count = max(1, int(200 * scale))
    words = words_of(stdlib_files(), 8000)
    questions = tool_questions(count, words, model.codec, seed)
    asked = [[("system", system_turn("", [q.tool]).text), ("user", q.prompt)] for q in questions]
    said = [
        [*turns, ("assistant", q.call()), ("user", response_turn([q]).text)] for turns, q in zip(asked, questions, strict=True)
    ]
    others = held_out_tasks(model.codec, "reversal", count, words, seed)
    beside = [[turns[0], ("user", task.prompt)] for turns, task in zip(asked, others, strict=True)]
    kinds = {
        "tool_call": (asked, [q.call() for q in questions], 110),
        "tool_answer": (said, [q.answer for q in questions], 16),
        "tool_not_needed": (beside, [task.answer for task in others], 16),
    }
    results = {}
    for kind, (conversations, expected, longest) in kinds.items():
        answers = model.generate([model.codec.prompt(turns) for turns in conversations], longest)
        results[kind] = scored(kind, [turns[-1][1] for turns in conversations], answers, expected)
    return results


def measure_json(model: Model, scale: float, seed: int) -> dict[str, Any]:
    """Share of values that are right where a schema has written all before them."""
    codec, rng = model.codec, Random(f"evaluate/{seed}/json")
    source = Source([], [], held_out=True)
    prompts, told, expected = [], [], []
    for _ in range(max(1, int(100 * scale))):
        person = draw_person(rng, source)
        answer, end = json.dumps(person.values), 0
        for value in map(json.dumps, person.values.values()):
            end = answer.index(value, end)
            prompts.append(codec.prompt([("user", person.sentence)]) + codec.text(answer[: end - 1]))
            told.append(f"{person.sentence} {answer[:end]}")
            expected.append(f" {value}")
    answers = [text[: len(value)] for text, value in zip(model.generate(prompts, 16), expected, strict=True)]
    return {"json_value": scored("json_value", told, answers, expected)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("jaxserve/assets/pico"))
    parser.add_argument("--out", type=Path, help="file of results to write")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tasks to run, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = Model(args.model)
    tasks = measure(model, args.scale, args.seed)
    tasks |= measure_tools(model, args.scale, args.seed) | measure_json(model, args.scale, args.seed)
    fixed = dict(zip(FIXED, model.generate([model.codec.prompt([("user", p)]) for p in FIXED], 16), strict=True))
    codes = [[model.codec.bos, *model.codec.text(c)] for c in CODE]
    samples = [{"prompt": c, "continuation": t} for c, t in zip(CODE, model.generate(codes, 80), strict=True)]
    print(json.dumps(fixed, indent=2), *(s["prompt"] + "⟶" + s["continuation"] for s in samples), sep="\n\n")
    main_kinds = [tasks[k] for k in ("addition", "reversal")]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in ("jax", "optax", "tokenizers")},
        "seed": args.seed,
        "parameters": sum(p.size for p in model.params.values()),
        "training": json.loads((args.model / "training.json").read_text()),
        "held_out_addition_and_reversal": sum(t["accuracy"] for t in main_kinds) / 2,
        "fixed_prompts_right": sum(fixed[p] == a for p, a in FIXED.items()) / len(FIXED),
        "tasks": tasks,
        "python_continuations": samples,
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
