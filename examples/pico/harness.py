"""Writes the documents of the evaluation tasks that jaxserve ships: `python examples/pico/harness.py [FOLDER]`.

They are tasks of `tasks.py` whose pairs and words no training task used, wrong choices beside some of the right answers, and
stretches of the standard library. The same bytes come from CPython 3.11, 3.12 and 3.13, which share the library's files below.
"""

import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from tasks import CITIES, COLORS, MAKERS, NAMES, Source, Task

ROOT = Path(__file__).parents[2] / "jaxserve"
COUNT = 100  # scored documents of a kind
EXAMPLES = 5  # documents more, for few-shot prompts
WRONG = 3  # wrong choices beside a right answer
KINDS = ("addition", "addition/one_digit", "subtraction", "reversal", "uppercase", "digit_sort", "letter_count", "json_fill")

# Of the library that the model was trained on, and of the parts that `data.py` leaves out.
SEEN = ("heapq", "optparse", "difflib", "graphlib", "weakref", "string", "_threading_local", "tracemalloc", "pyclbr", "abc")
UNSEEN = (
    "idlelib/autoexpand", "idlelib/codecontext", "idlelib/format", "idlelib/hyperparser", "idlelib/history",
    "idlelib/squeezer", "idlelib/undo", "turtledemo/nim", "turtledemo/penrose", "turtledemo/sorting_animate",
)  # fmt: skip
LONGEST = 2400  # characters of a stretch: more than the model's context holds, so that it is read in two windows

Document = dict[str, Any]


def stretch(module: str) -> str:
    """The whole lines at the start of a file of the standard library."""
    text = (Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py").read_text(encoding="utf-8")
    return text[: text.rindex("\n", 0, LONGEST) + 1]


def texts(modules: tuple[str, ...]) -> list[Document]:
    """A document a file."""
    return [{"module": module.replace("/", "."), "text": stretch(module)} for module in modules]


def held_out(kind: str, source: Source) -> list[Task]:
    """Different tasks of a kind over pairs and words that training never showed; `/one_digit`: with numbers of one digit."""
    maker, _, variant = kind.partition("/")
    source = Source(source.words, source.pieces, held_out=True, one_digit=float(variant == "one_digit"))
    dice, tasks = Random(f"harness/{kind}"), dict[str, Task]()
    while len(tasks) < EXAMPLES + COUNT:
        task = MAKERS[maker](dice, source)
        tasks.setdefault(task.prompt, task)
    return list(tasks.values())


def near_numbers(answer: str, dice: Random) -> Iterator[str]:
    """Off by one, by ten, or by what else a wrong carry makes."""
    while True:
        yield str(int(answer) + dice.choice((-1, 1)) * dice.choice((1, 2, 9, 10, 11, 20)))


def near_orders(answer: str, dice: Random) -> Iterator[str]:
    """The same characters with two exchanged, or with one changed, which a run of equal ones needs."""
    alphabet = next(letters for letters in (digits, ascii_lowercase, ascii_uppercase) if answer[0] in letters)
    while True:
        characters = list(answer)
        first, second = dice.sample(range(len(characters)), 2)
        if dice.random() < 0.7:
            characters[first], characters[second] = characters[second], characters[first]
        else:
            characters[first] = dice.choice(alphabet)
        yield "".join(characters)


def near_objects(answer: str, dice: Random) -> Iterator[str]:
    """The same object with one value that the sentence does not name."""
    values: dict[str, Callable[[], str | int]] = {
        "name": lambda: dice.choice(NAMES.split()),
        "city": lambda: dice.choice(CITIES.split()),
        "color": lambda: dice.choice(COLORS.split()),
        "age": lambda: dice.randint(10, 99),
    }
    while True:
        filled = json.loads(answer)
        key = dice.choice(sorted(filled))
        yield json.dumps(filled | {key: values[key]()})


NEAR: dict[str, Callable[[str, Random], Iterator[str]]] = {
    "addition": near_numbers,
    "subtraction": near_numbers,
    "digit_sort": near_orders,
    "reversal": near_orders,
    "uppercase": near_orders,
    "json_fill": near_objects,
}


def choices(task: Task, dice: Random) -> Document:
    """The right answer among wrong ones, and its place."""
    found = {task.answer: None}
    for wrong in NEAR[task.kind](task.answer, dice):
        found.setdefault(wrong)
        if len(found) == 1 + WRONG:
            break
    listed = list(found)
    dice.shuffle(listed)
    return {"choices": listed, "gold": listed.index(task.answer)}


def documents(kind: str, source: Source) -> list[Document]:
    """The first `EXAMPLES` are examples for few-shot prompts, the others are scored."""
    dice = Random(f"harness/choices/{kind}")
    return [
        {"split": "fewshot" if index < EXAMPLES else "test", "prompt": task.prompt, "answer": task.answer}
        | (choices(task, dice) if kind in NEAR else {})
        for index, task in enumerate(held_out(kind, source))
    ]


def write(folder: Path) -> None:
    """A file a kind, and one each of seen and unseen text."""
    files = {"text_seen": texts(SEEN), "text_unseen": texts(UNSEEN)}
    text = " ".join(document["text"] for stretches in files.values() for document in stretches)
    parts = "".join(c if c.isalpha() else " " for c in text).split()
    words = sorted({word for word in parts if word.isascii() and word.islower() and 3 <= len(word) <= 9})
    vocabulary = json.loads((ROOT / "assets/pico/tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    pieces = sorted(t for t in vocabulary if t.isascii() and t.isalpha() and t.islower() and len(t) <= 6)
    files |= {kind.replace("/", "_"): documents(kind, Source(words, pieces)) for kind in KINDS}
    for name, listed in files.items():
        lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in listed]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "evaluation/tasks")
