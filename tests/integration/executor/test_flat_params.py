"""Weights that are flattened once are the same weights, under the same names."""

from typing import Any

import jax
import numpy as np

from jaxserve.executor.flat_params import FlatParams

TREE = {"layers": {"0": {"w": np.ones(2), "b": np.zeros(3)}, "10": {"w": np.full(4, 7.0)}}, "head": [np.arange(5.0), None]}


def structure_of(tree: Any) -> Any:
    return jax.tree.structure(tree)


def test_the_tree_comes_back():
    again = FlatParams.of(TREE).tree()
    assert structure_of(again) == structure_of(TREE)
    assert all(one is other for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(TREE), strict=True))


def test_to_jax_it_is_one_node_whose_leaves_keep_their_order_and_names():
    flat = FlatParams.of(TREE)
    leaves, _ = jax.tree.flatten(flat)
    structure = structure_of(flat)
    assert all(one is other for one, other in zip(leaves, jax.tree.leaves(TREE), strict=True))
    assert structure.num_nodes == 1 + len(leaves)
    assert structure == structure_of(FlatParams.of(jax.tree.map(np.copy, TREE)))
    assert structure != structure_of(FlatParams.of({str(place): leaf for place, leaf in enumerate(leaves)}))
    named, plain = (jax.tree_util.tree_leaves_with_path(tree) for tree in (flat, TREE))
    assert [jax.tree_util.keystr(path) for path, _ in named] == [jax.tree_util.keystr(path) for path, _ in plain]


def test_programs_name_their_parameters_as_in_the_tree():
    def total(params):
        return sum(leaf.sum() for leaf in jax.tree.leaves(params.tree()))

    compiled = jax.jit(total).lower(FlatParams.of(TREE)).compile()
    text = compiled.as_text()
    assert text is not None
    assert "params['layers']['10']['w']" in text.replace("\\'", "'")
    assert compiled(FlatParams.of(TREE)) == 2 + 28 + 10
