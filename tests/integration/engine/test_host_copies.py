"""What steps move: one array to the device and one packed array back, and the host waits for nothing else.

On CPUs jax's transfer guard sees what goes to a device, not what comes from it (it lies in the host's memory already), so what
comes is counted where Python asks for it.
"""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxserve.engine.build import BuiltEngine
from jaxserve.executor.local import LocalExecutor
from jaxserve.sampling.params import MAX_LOGPROBS, SamplingParams
from jaxserve.step.plan import Plan
from tests.golden.reading import read_golden
from tests.support.engine import build, run

COLUMNS = 2 + 2 + 2 * MAX_LOGPROBS  # packed: a token, how many count, its log-probability, rank, alternatives
READS = ("__array__", "__bool__", "__float__", "__index__", "__int__", "item", "tolist")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12] * 9]
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "logprobs": 2},
}


@pytest.fixture(scope="module")
def built() -> BuiltEngine:
    directory = read_golden("llama-tied").directory
    return build(directory, max_num_seqs=4, max_num_batched_tokens=4, max_model_len=96)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """Each time Python reads an array of a device, starts its copy or waits for it: how, and the array's shape."""
    seen: list[tuple[str, tuple[int, ...]]] = []
    kind = type(jax.numpy.zeros(1))

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def watched(array: object, *arguments: object, **options: object) -> object:
            if isinstance(array, jax.Array):
                seen.append((name, array.shape))
            return real(array, *arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    for name in ("asarray", "array"):
        watch(np, name)
    for name in ("device_get", "block_until_ready"):
        watch(jax, name)
    for name in (*READS, "copy_to_host_async", "block_until_ready"):
        watch(kind, name)
    return seen


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlapped", "one by one"])
@pytest.mark.parametrize("far", [True, False], ids=["as on a GPU", "as on a CPU"])
def test_a_step_costs_one_copy_each_way(built, monkeypatch, touched, far, overlap, settings) -> None:
    """With decode, and decode beside chunks of prompts: nothing else moves, and nothing is computed beside the step's program."""
    executor = built.core.executor
    submitted, submit, sent, make = [], executor.submit, [], executor._batch
    everywhere = NamedSharding(executor._forward.cache.stored.sharding.mesh, PartitionSpec())

    def put(*arguments: object) -> object:  # explicitly, which is what the guard lets pass
        batch = make(*arguments)
        sent.append(len(jax.tree.leaves(batch)))
        return jax.device_put(batch, everywhere)

    def submitting(plan: Plan) -> object:
        submitted.append(plan)
        return submit(plan)

    monkeypatch.setattr(executor, "_far", far)
    monkeypatch.setattr(executor, "_batch", put)
    monkeypatch.setattr(executor, "submit", submitting)
    with jax.transfer_guard("disallow"):
        params = SamplingParams(max_tokens=8, ignore_eos=True, **settings)
        run(built, PROMPTS, params, overlap=overlap, prefix_caching=False)
    counts = [np.diff(plan.query_start).tolist() for plan in submitted]
    assert [1, 1, 1] in counts
    assert any(1 in some and max(some) > 1 for some in counts), "decode beside a chunk of a prompt"
    packed = [(bucket_rows(built, plan), COLUMNS) for plan in submitted]
    assert sent == [1] * len(submitted)
    assert [shape for how, shape in touched if how == "asarray"] == packed
    assert [shape for how, shape in touched if how == "copy_to_host_async"] == packed * far
    assert len(touched) == (1 + far) * len(submitted)


def bucket_rows(built: BuiltEngine, plan: Plan) -> int:
    assert isinstance(built.core.executor, LocalExecutor)
    return built.core.executor._programs.steps.bucket(plan.num_tokens, plan.num_rows, plan.longest_row).rows


def test_the_guard_and_the_watch_see_what_a_step_must_not_do(touched) -> None:
    """Each thing that would make the host wait, or would be a launch beside the step's program, is seen by one of the two."""
    array = jax.numpy.arange(4)
    touched.clear()
    reads = (lambda: int(array[0]), array.tolist, lambda: np.asarray(array), lambda: np.array(array), array.block_until_ready)
    for read in reads:
        seen = len(touched)
        read()
        assert len(touched) > seen
    with jax.transfer_guard("disallow"), pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        array + np.ones(4, np.int32)
