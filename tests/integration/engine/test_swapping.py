"""Preempted sequences whose pages wait in host memory go on as if nothing had been: the same tokens, and no slot is lost."""

from typing import Any

import numpy as np
import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock, VirtualClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.errors import DeadlineError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions
from tests.golden.reading import read_golden
from tests.support import hlo
from tests.support.engine import run, silent
from tests.support.families import FAMILIES, SPARSE, write_config
from tests.support.tiers import tiered

ROWS, PAGE, NUM_PAGES, FEW = 6, 8, 70, 20
COUNT = 10
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 11},
    {"temperature": 1.2, "seed": 12, "top_k": 20, "top_p": 0.9, "frequency_penalty": 0.4, "logit_bias": {17: 3.0}},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
]
PARAMS = [SamplingParams(max_tokens=30, ignore_eos=True, **KINDS[index % len(KINDS)]) for index in range(COUNT)]


def built(directory, devices=1, swap_space=0.1):
    """An engine of random weights whose executor has more swap slots than any test uses."""
    settings = {"model": str(directory), "load_format": "dummy", "dtype": "float32", "max_model_len": 64, "page_size": PAGE}
    limits = {
        "num_pages": NUM_PAGES,
        "max_num_seqs": ROWS,
        "before_ready": "fewest",
        "max_num_batched_tokens": 16,
        "tensor_parallel_size": devices,
    }
    config = EngineConfig.from_settings({**settings, **limits, "swap_space": swap_space, "late_compiles": "raise"})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


def prompts():
    rng = np.random.default_rng(7)
    return [rng.integers(3, 250, int(length)).tolist() for length in rng.integers(4, 30, COUNT)]


def pressed(engine, swap, **more):
    """A run with few pages, that plans for no growth."""
    return run(engine, prompts(), PARAMS, num_pages=more.pop("num_pages", FEW), growth_reserve=0.0, swap=swap, **more)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return built(write_config(tmp_path_factory.mktemp("llama"), "llama"))


MODELS = [("llama", 1), ("llama", 4), ("gemma3-local", 2), ("deepseek_v2", 2), ("glm5-shared", 2)]
CORE = [("llama", 1), ("gemma3-local", 2)]  # pages of one kind, and of two on two devices


@pytest.mark.parametrize(("model", "devices"), tiered(MODELS, CORE))
def test_swapped_recomputed_and_undisturbed_are_the_same(llama, model, devices, tmp_path):
    directory = write_config(tmp_path, model) if model in FAMILIES | SPARSE else read_golden(model).directory
    engine = llama if (model, devices) == ("llama", 1) else built(directory, devices)
    few = FEW * len(engine.core.executor.capabilities().windows)
    undisturbed = run(engine, prompts(), PARAMS)
    recomputed = pressed(engine, None, num_pages=few, prefix_caching=False)
    assert recomputed.tokens == undisturbed.tokens
    assert recomputed.preemptions
    assert not any(event.swapped for event in recomputed.preemptions)
    before = engine.core.executor.counts()
    for overlap in (True, False):
        swap = SwapSpace(200, 0.0)
        swapped = pressed(engine, swap, num_pages=few, overlap=overlap, prefix_caching=overlap)
        assert swapped.tokens == undisturbed.tokens
        assert sum(event.swapped for event in swapped.preemptions) > 1
        assert swap.num_free == 200
    after = engine.core.executor.counts()
    assert after.swapped_out_pages - before.swapped_out_pages == after.swapped_in_pages - before.swapped_in_pages > 4
    assert after.late_compiles == 0
    *_, copy, gather, scatter = engine.core.executor.program_texts()
    assert not any(hlo.collectives(text) for text in (copy, gather, scatter)), "every device moves its own heads"
    assert "input_output_alias" in scatter


def test_a_full_swap_space_leaves_the_others_to_be_computed_again(llama):
    swap = SwapSpace(5, 0.0)
    mixed = pressed(llama, swap)
    assert mixed.tokens == run(llama, prompts(), PARAMS).tokens
    assert {event.swapped for event in mixed.preemptions} == {True, False}
    assert swap.num_free == 5


@pytest.mark.parametrize("when", [1, 2, 3])
def test_whoever_ends_while_swapped_leaves_no_slot_behind(llama, when):
    """Every third sequence that is swapped out is aborted so many steps later; all others go on undisturbed."""
    swap, ended = SwapSpace(200, 0.0), set()
    waits: dict[str, int] = {}

    def abort(core):
        out = [name for name, sequence in core.scheduler.sequences.items() if sequence.swap_slots]
        waits.update((name, waits.get(name, 0) + 1) for name in out)
        gone = [name for name in out if waits[name] == when][:1]
        ended.update(core.abort(gone))
        core.scheduler.check()

    whole = run(llama, prompts(), PARAMS)
    cut = pressed(llama, swap, each_step=abort)
    assert ended
    assert swap.num_free == 200
    for mine, all_tokens in zip(cut.tokens, whole.tokens, strict=True):
        assert mine == all_tokens[: len(mine)]
    assert sum(len(mine) < 30 for mine in cut.tokens) == len(ended)


def test_a_deadline_that_passes_while_swapped_gives_the_slots_back(llama):
    swap = SwapSpace(200, 0.0)
    seen: list[float] = []

    def wait(core):  # an hour, with a sequence in the swap space
        if not seen and any(sequence.swap_slots for sequence in core.scheduler.sequences.values()):
            seen.append(core.scheduler.clock.now())
            core.scheduler.clock = VirtualClock(seen[0] + 3600.0)

    late = pressed(llama, swap, options=RequestOptions(timeout=3600.0), each_step=wait)
    errors = [update.error for updates in late.updates for update in updates if update.error is not None]
    assert seen
    assert errors
    assert all(isinstance(error, DeadlineError) for error in errors)
    assert swap.num_free == 200


def test_what_a_page_takes_to_move_is_measured(llama):
    limits = llama.core.executor.capabilities()
    assert limits.swap_slots > 200
    assert limits.swap_page_seconds > 0.0
    assert llama.core.scheduler._preempter._swap.seconds(1) == limits.swap_page_seconds
