"""What lm-eval asks of a model, so that its own `hf` model and JaxserveLM can be asked the same: requests, and three tasks.

The model is a golden checkpoint with a tokenizer over bytes. Imports neither torch nor jax: both sides use it.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from tests.support.tiny_checkpoint import write_tiny_checkpoint

DATA = Path(__file__).parent / "data" / "llama3-layout4"
ANSWERS = Path(__file__).parent / "harness.json"
MAX_LENGTH = 96
BOS, EOS = "<s>", "</s>"

_TEXT = "Now is the time for all good men to come to the aid of the party. " * 8
_SHORT = {"until": ["\n"], "max_gen_toks": 12}


def write_checkpoint(directory: Path) -> Path:
    """The checkpoint: golden weights, and a tokenizer that knows BOS and EOS but adds neither."""
    write_tiny_checkpoint(directory)
    shutil.copy(DATA / "model.safetensors", directory)
    config = json.loads((DATA / "config.json").read_text())
    config |= {"bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": MAX_LENGTH}
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((directory / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"  # else transformers makes a Llama's of it
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory


LOGLIKELIHOODS = [
    ("the cat sat on", " the mat"),
    ("the cat sat on", " a mat"),
    ("the cat sat on", " the roof"),
    ("the cat sat on", " the mat"),  # again
    ("a context that ends in spaces  ", "and goes on"),
    ("one token: ", "A"),
    ("one token: ", "B"),
    ("one token:", " C"),
    ("", "nothing before it"),
    ("", f"{BOS}begins by itself"),
    (f"{BOS}begins with the first token", " and goes on"),
    ("Grüße, naïve café ☕", " – 東京"),
    (_TEXT[:90], " and so on"),  # longer than the model sees
    (_TEXT[:300], " whatever came before"),
    ("x", _TEXT[:MAX_LENGTH]),  # the longest continuation
    ("", _TEXT[:MAX_LENGTH]),
    (_TEXT[: MAX_LENGTH - 3], "end"),  # just fits
    (_TEXT[: MAX_LENGTH - 2], "end"),  # one token is only predicted
    ("the dog", "{"),  # what the model says
    ("the dog", "{{{{"),
    ("the dog", "{{{|"),  # but for its end
    ("the dog", "|"),
]
TEXTS = ["", "a", _TEXT[: MAX_LENGTH - 1], _TEXT[:MAX_LENGTH], _TEXT[: MAX_LENGTH + 1], _TEXT[:400], "日本語 text ☕"]
GENERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("the cat sat", _SHORT),
    ("the dog", {"until": ["e", "o"], "max_gen_toks": 20}),
    ("numbers: 1 2 3", {"until": [], "max_gen_toks": 7, "do_sample": False, "temperature": 0.7}),
    (f"{BOS}<|user|>hello<|assistant|>", {"max_gen_toks": 16}),
    (_TEXT[:300], {"until": "q", "max_gen_toks": 24}),  # its beginning makes room
    ("stop at one of many", {"until": [chr(ord("a") + place) * 3 for place in range(20)], "max_new_tokens": 10}),
]


def _choices(**_: Any) -> dict[str, Dataset]:
    dice = Random(5)
    documents = []
    for number in range(12):
        left, right = dice.randrange(100), dice.randrange(100)
        answers = [left + right + offset for offset in (0, 1, 10, -9)]
        dice.shuffle(answers)
        text = {"question": f"{left} + {right} =", "choices": [str(answer) for answer in answers]}
        documents.append({**text, "gold": answers.index(left + right), "number": number})
    return {"test": Dataset.from_list(documents)}


def _questions(**_: Any) -> dict[str, Dataset]:
    return {"test": Dataset.from_list([{"question": f"{number}:", "answer": chr(97 + number)} for number in range(6)])}


def _texts(**_: Any) -> dict[str, Dataset]:
    return {"test": Dataset.from_list([{"text": _TEXT[start : start + 150]} for start in (0, 7, 30)])}


TASKS: list[dict[str, Any]] = [
    {
        "task": "choices",
        "custom_dataset": _choices,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    {
        "task": "questions",
        "custom_dataset": _questions,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "question",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    {
        "task": "texts",
        "custom_dataset": _texts,
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
]


def instances(kind: str, arguments: list[Any]) -> list[Instance]:
    """Requests as the harness makes them."""
    return [Instance(kind, {}, one if isinstance(one, tuple) else (one,), number) for number, one in enumerate(arguments)]


def asked(model: Any) -> dict[str, Any]:
    """A model's answers to every request."""
    return {
        "loglikelihood": [list(answer) for answer in model.loglikelihood(instances("loglikelihood", LOGLIKELIHOODS))],
        "loglikelihood_rolling": model.loglikelihood_rolling(instances("loglikelihood_rolling", TEXTS)),
        "generate_until": model.generate_until(instances("generate_until", GENERATIONS)),
    }


def scored(model: Any, *, chat: bool) -> dict[str, Any]:
    """A model's scores on the tasks and, by task, what it answered for each document."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_defaults=False)  # the harness's own tasks are thousands of files
    results = simple_evaluate(
        model=model, tasks=TASKS, task_manager=manager, bootstrap_iters=0, apply_chat_template=chat, num_fewshot=0
    )
    metrics = {
        task: {name: float(value) for name, value in values.items() if isinstance(value, float) and "stderr" not in name}
        for task, values in results["results"].items()
    }
    answers = {task: [sample["resps"] for sample in samples] for task, samples in results["samples"].items()}
    return {"metrics": metrics, "answers": json.loads(json.dumps(answers))}
