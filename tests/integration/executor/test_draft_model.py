"""A draft model behind the steps of another: tokens are those without it, and it guesses right where it can."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.executor.draft_runner import DraftWeights
from jaxserve.executor.draft_step import DraftModel
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import Programs, make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config
from jaxserve.step.codes import guessed_token, sampled_token
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from sharding.mesh import make_mesh
from tests.support.engine import silent
from tests.support.plans import make_plan
from tests.support.tiers import tiered
from tests.support.tiny_checkpoint import write_tiny_checkpoint

GUESSES, SLOTS, PAGE, PAGES = 3, 3, 4, 40
PROMPTS = ([3, 1, 4, 1, 5, 9, 2], [6, 5, 3])
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    return directory, decoder_config(read_hf_config(directory))


@cache
def compiled(config: DecoderConfig, devices: int, *, drafting: bool) -> tuple[Lowering, Programs]:
    """Programs know nothing of weights: drafts of other numbers have the same."""
    options = ExecutorOptions(
        max_num_seqs=SLOTS,
        max_num_batched_tokens=16,
        max_model_len=64,
        num_pages=PAGES,
        page_size=PAGE,
        dtype="float32",
        kv_dtype="float32",
        max_drafts=GUESSES if drafting else 0,
        fewest_shapes=True,
        strict=True,
    )
    lowering = Lowering(config, make_mesh(devices), options, draft=DraftModel(config, GUESSES) if drafting else None)
    return lowering, make_programs(lowering, silent)


def build(model: tuple[Path, DecoderConfig], devices: int, draft_seed: int | None) -> LocalExecutor:
    directory, config = model
    lowering, programs = compiled(config, devices, drafting=draft_seed is not None)
    mesh = lowering.mesh

    def params(seed: int) -> Any:
        return load_params(
            directory,
            config,
            mesh,
            "float32",
            load_format="dummy",
            seed=seed,
            packer=Packer(config, mesh, "none"),
            progress=lambda done, total: None,
        )

    return LocalExecutor(lowering, programs, params(0), draft=None if draft_seed is None else DraftWeights(params(draft_seed)))


def generate(executor: LocalExecutor, temperature: float, count: int = 0) -> tuple[list[list[int]], list[int]]:
    """Tokens of every prompt, planned a step ahead of what is known, and how many each step gave to the first."""
    pages = [list(range(1, 17)), list(range(17, 33))]
    first = make_plan(
        *((prompt, len(prompt), table) for prompt, table in zip(PROMPTS, pages, strict=True)),
        temperature=temperature,
        guesses=count if count else None,
    )
    handles = [executor.submit(first)]
    tokens: list[list[int]] = [[], []]
    taken: list[int] = []
    most = [len(prompt) for prompt in PROMPTS]  # tokens in the cache at most
    while min(map(len, tokens)) < LENGTH:
        row = [
            ([sampled_token(slot), *(guessed_token(slot, place, SLOTS) for place in range(count))], pages[slot])
            for slot in range(2)
        ]
        most = [length + 1 + count for length in most]
        plan = make_plan(
            *((codes, min(length, 60), table) for (codes, table), length in zip(row, most, strict=True)),
            temperature=temperature,
            guesses=count if count else None,
        )
        plan = replace(plan, num_drafts=np.full(2, count, np.int32))
        handles.append(executor.submit(plan))
        result = handles.pop(0).result()
        for slot in range(2):
            tokens[slot] += result.tokens[slot, : result.num_tokens[slot]].tolist()
        taken.append(int(result.num_tokens[0]))
    handles.pop().result()
    return [each[:LENGTH] for each in tokens], taken[1:]


@pytest.fixture(scope="module")
def alone(model):
    return build(model, 1, None)


# On two devices test_draft_head has a draft, too.
@pytest.mark.parametrize("devices", tiered([1, 2], {1}))
def test_guesses_of_the_same_model_are_right(model, alone, devices):
    executor = build(model, devices, 0)
    for temperature in (0.0, 1.0):
        tokens, taken = generate(executor, temperature, GUESSES)
        assert tokens == generate(alone, temperature)[0]
        assert set(taken) == {1 + GUESSES}


def test_guesses_of_another_model_change_no_token(model, alone):
    executor = build(model, 1, 5)
    for temperature in (0.0, 1.0):
        tokens, taken = generate(executor, temperature, GUESSES)
        assert tokens == generate(alone, temperature)[0]
        assert sum(taken) < len(taken) * 2
    assert executor.late_compiles == 0
