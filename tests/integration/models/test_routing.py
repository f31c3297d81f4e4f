"""Who visits whom, against a plain loop over tokens and experts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import CheckpointError
from jaxserve.models.config import Experts, Routing
from jaxserve.models.families.common import require_experts
from jaxserve.models.routing import route

COUNT, TOKENS = 12, 40
PLAIN = Experts(count=COUNT, active=3, ffn_size=8, layers=(True,), routing=Routing())
V2 = Routing(normalize=False, scale=1.5, groups=4, active_groups=2)
V3 = Routing(score="sigmoid", scale=2.5, correction=True, groups=3, active_groups=2, group_score="top2")
ROUTINGS = [
    Routing(),
    Routing(normalize=False),
    Routing(score="sigmoid", scale=0.5),
    Routing(correction=True),
    V2,
    V3,
    replace(V3, group_score="max", active_groups=1),
]


def inputs():
    rng = np.random.default_rng(5)
    return rng.normal(size=(TOKENS, COUNT)).astype(np.float32), rng.normal(size=COUNT).astype(np.float32) * 0.4


def loop(logits, correction, experts):
    """The best experts of one token, one after the other, and their weights."""
    routing = experts.routing
    powers = [float(np.exp(np.float64(logit))) for logit in logits]
    scores = [p / sum(powers) for p in powers] if routing.score == "softmax" else [p / (1 + p) for p in powers]
    choice = [s + float(c) for s, c in zip(scores, correction, strict=True)] if routing.correction else scores
    size = len(choice) // routing.groups
    groups = {g: sorted(choice[g * size : (g + 1) * size], reverse=True) for g in range(routing.groups)}
    worth = {g: members[0] if routing.group_score == "max" else members[0] + members[1] for g, members in groups.items()}
    open_groups = sorted(worth, key=worth.__getitem__, reverse=True)[: routing.active_groups]
    allowed = [e for e in range(len(choice)) if e // size in open_groups]
    chosen = sorted(allowed, key=choice.__getitem__, reverse=True)[: experts.active]
    weights = [scores[e] for e in chosen]
    total = sum(weights) if routing.normalize else 1.0
    return chosen, [w / total * routing.scale for w in weights]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_choices_and_weights(routing):
    logits, correction = inputs()
    experts = replace(PLAIN, routing=routing)
    routed = jax.jit(lambda logits: route(logits, correction if routing.correction else None, experts))(logits)
    expected = [loop(row, correction, experts) for row in logits]
    np.testing.assert_array_equal(routed.experts, [chosen for chosen, _ in expected])
    np.testing.assert_allclose(routed.weights, [weights for _, weights in expected], rtol=1e-5)
    assert (routed.experts.dtype, routed.weights.dtype) == ("int32", "float32")
    assert routed.experts.shape == (TOKENS, experts.active)


def test_routings_choose_differently():
    logits, correction = inputs()
    chosen = {str([loop(row, correction, replace(PLAIN, routing=routing))[0] for row in logits]) for routing in ROUTINGS}
    assert len(chosen) == len(ROUTINGS) - 2  # how much the chosen ones count changes nothing


def test_of_equals_the_first_are_chosen():
    routed = route(jnp.zeros((1, COUNT), jnp.float32), None, PLAIN)
    np.testing.assert_array_equal(routed.experts, [[0, 1, 2]])
    np.testing.assert_allclose(routed.weights, np.full((1, 3), 1 / 3), rtol=1e-6)


def test_weights_that_underflow_together_are_no_nan():
    routed = route(jnp.full((1, COUNT), -300.0, jnp.float32), None, replace(PLAIN, routing=Routing(score="sigmoid")))
    np.testing.assert_array_equal(routed.weights, np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("changes", "routing", "words"),
    [
        ({"active": 13}, {}, "num_experts_per_tok=13 is more than the 12 experts to choose from"),
        ({"active": 7}, {"groups": 4, "active_groups": 2}, "num_experts_per_tok=7 is more than the 6 experts to choose from"),
        ({}, {"groups": 5}, "n_group=5 does not divide 12 experts"),
        ({}, {"groups": 4, "active_groups": 5}, "topk_group=5 is more than n_group=4"),
        ({}, {"groups": 12, "active_groups": 3, "group_score": "top2"}, "n_group=12 leaves one expert of 12 in a group"),
    ],
)
def test_experts_that_cannot_be_chosen_are_refused_by_name(changes, routing, words):
    with pytest.raises(CheckpointError, match=words):
        require_experts(replace(PLAIN, **changes, routing=Routing(**routing)))
    require_experts(replace(PLAIN, routing=Routing(groups=4, active_groups=2)))
