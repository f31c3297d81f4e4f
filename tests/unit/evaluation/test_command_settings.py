"""Flags of jaxserve.eval, what becomes of them, its bar, and the list of tasks."""

from __future__ import annotations

import argparse
import io
import logging
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from jaxserve import eval as command
from jaxserve.config.flags import add_flags, from_flags
from jaxserve.evaluation.harness import list_own
from jaxserve.evaluation.listing import show_tasks
from jaxserve.evaluation.notes import heard
from jaxserve.evaluation.settings import EvalConfig


def parsed(*arguments: str) -> EvalConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser, EvalConfig)
    return from_flags(EvalConfig, vars(parser.parse_args(arguments)))


def test_flags_and_what_they_are_without_one() -> None:
    assert parsed() == EvalConfig()
    assert parsed("--apply-chat-template") == EvalConfig(apply_chat_template=True)
    assert parsed("--no-apply-chat-template") == EvalConfig(apply_chat_template=False)
    assert parsed("--log-samples", "--limit", "5", "--num-fewshot", "0") == EvalConfig(log_samples=True, limit=5, num_fewshot=0)


def test_tasks_are_named_with_commas_between() -> None:
    assert parsed("--tasks", " a, b_*,,c").names == ("a", "b_*", "c")


def engine_settings(*arguments: str) -> dict[str, Any]:
    return command._engine_settings(vars(command._parser().parse_args(arguments)), "pico")


def test_an_engine_gets_what_was_asked_for_and_steps_as_large_as_a_batch_wants_them() -> None:
    usual = engine_settings()
    assert usual | {"model": "pico", "default_class": "batch"} == usual
    assert set(usual) <= {"model", "default_class", "max_num_seqs", "max_num_batched_tokens", "max_waiting"}
    asked = engine_settings("--max-num-seqs", "3", "--dtype", "float32", "--no-prefix-caching")
    assert asked | {"max_num_seqs": 3, "dtype": "float32", "prefix_caching": False} == asked


def test_one_bar_shows_one_thing_after_another() -> None:
    with Progress(console=Console(file=io.StringIO())) as progress:
        bar = command._Bar(progress)
        for what, done in (("compiling", 1), ("compiling", 4), ("scoring", 2)):
            bar.told(what, done, 4)
        (task,) = progress.tasks
        assert (task.description, task.completed, task.total) == ("scoring", 2, 4)


def test_own_tasks_are_listed_groups_first() -> None:
    listed = list_own(None)
    assert listed[0].name == "pico"
    assert listed[0].members == ("pico_answers", "pico_choices", "pico_spelling", "pico_text")
    assert {entry.kind for entry in listed} == {"group", "generate_until", "multiple_choice", "loglikelihood_rolling"}
    file = io.StringIO()
    show_tasks(listed, 12_345, Console(file=file, width=118))
    assert "12,345 more come with lm-eval" in file.getvalue()
    assert all(entry.name in file.getvalue() for entry in listed)


def test_a_warning_is_noted_once_with_how_often_it_came(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jaxserve.evaluation.model")
    with heard() as notes:
        logger.warning("a context of %d tokens is cut", 700)
        logger.warning("a context of %d tokens is cut", 800)
        logger.warning("something else")
    assert notes.lines() == ["a context of 700 tokens is cut (2 times)", "something else"]
    assert not caplog.records
