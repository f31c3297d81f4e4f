"""Operations on a checked engine drawn from a seed: the same every time, dense, and quick."""

import random
from dataclasses import replace

from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.checked_engine import CheckedEngine
from tests.support.hash_executor import Windows
from tests.support.watched_parts import Setup, Wish, longest_needs

BLOCKS = ((7, 8, 9, 10, 7, 8, 9, 11), (1, 2, 3, 4, 5, 6, 1, 2))  # of which prompts are made: prefixes and inner pages coincide
CAPPED = Policies(tenants={"ours": TenantPolicy(kv_share=0.3, kv_cap=0.6), "theirs": TenantPolicy(prefill_reserve=0.3)})


def scripted_setup(seed: int, windows: Windows = (None,)) -> Setup:
    """A pool that is always too small; the seed chooses page size, overlap, chunks, swaps and quotas."""
    page_size = (4, 2, 8)[seed % 3]
    config = SchedulerConfig(
        max_num_seqs=5,
        max_num_batched_tokens=24,
        long_prefill_token_threshold=(0, 5)[seed % 2],
        max_waiting=8,
        low_watermark=0.0,
        high_watermark=0.0,
        growth_reserve=0.0,
        itl_target_ms=0.0,
        aging_s=0.5,
        overlap=seed % 4 < 2,
    )
    return Setup(
        config=config,
        policies=CAPPED if seed % 2 else Policies(),
        num_pages=longest_needs(windows, page_size, config.max_num_batched_tokens) + 4,
        page_size=page_size,
        swap_slots=(40, 4, 0)[seed % 3],
        windows=windows,
    )


def run_script(
    seed: int,
    operations: int = 150,
    tenants: tuple[str, ...] = ("ours", "theirs", "others"),
    windows: Windows = (None,),
    *,
    grammars: bool = False,
) -> CheckedEngine:
    """So many operations, then all there is to do; returns the engine. With `grammars` two of three requests are constrained."""
    draw = random.Random(seed)
    checked = CheckedEngine(scripted_setup(seed, windows))
    for _ in range(operations):
        choice = draw.random()
        if choice < 0.3:
            wish = _wish(draw, tenants)
            constrained = grammars and wish.scores is None and draw.random() < 0.67
            checked.add(replace(wish, grammar=draw.randrange(100)) if constrained else wish)
        elif choice < 0.33 and checked.got:
            checked.abort(draw.choice(sorted(checked.got)))
        elif choice < 0.36 and checked.got:
            checked.demote(draw.choice(sorted(checked.got)), demoted=draw.random() < 0.6)
        elif choice < 0.38:
            checked.wait(0.3)
        elif choice < 0.39:
            checked.pin(draw.choice(tenants), _prompt(draw))
        elif choice < 0.395:
            checked.flush()
        else:
            checked.step()
    checked.finish()
    return checked


def _wish(draw: random.Random, tenants: tuple[str, ...]) -> Wish:
    options = RequestOptions(
        tenant=draw.choice(tenants),
        service_class=draw.choice([*ServiceClass, ServiceClass.BATCH, ServiceClass.BATCH]),
        queue_timeout=draw.choice([None, None, None, 0.2]),
        timeout=draw.choice([None, None, None, None, 0.8]),
    )
    prompt = _prompt(draw)[: draw.choice([draw.randint(1, 8), draw.randint(1, 32)])]
    output, n, ignore_eos = draw.randint(8, 30), draw.choice([1, 1, 2, 3]), draw.random() < 0.7
    scores = draw.randrange(len(prompt)) if draw.random() < 0.25 else None
    if scores is not None and n == 1 and len(prompt) > 1 and draw.random() < 0.5:
        output = 0
    return Wish(prompt=prompt, output=output, scores=scores, n=n, ignore_eos=ignore_eos, options=options)


def _prompt(draw: random.Random) -> tuple[int, ...]:
    return sum(draw.choices(BLOCKS, k=4), ())
