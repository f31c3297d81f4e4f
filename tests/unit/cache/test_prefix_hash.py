"""Names of pages: everything that keys and values depend on, and who may see them, changes the name."""

from dataclasses import fields, replace

import pytest

from jaxserve.cache.prefix_hash import DIGEST_SIZE, CacheNamespace, page_hash

BASE = CacheNamespace(model="m", kv_dtype="float32", rope="r", adapter="a", salt="s", weights="w")


def test_equal_namespaces_have_one_root():
    assert BASE.root() == replace(BASE).root()
    assert len(BASE.root()) == DIGEST_SIZE


@pytest.mark.parametrize("name", [item.name for item in fields(CacheNamespace)])
def test_every_field_changes_the_root(name):
    other = replace(BASE, **{name: getattr(BASE, name) + "x"})
    empty = replace(BASE, **{name: ""})
    assert len({BASE.root(), other.root(), empty.root()}) == 3


def test_text_does_not_slide_from_field_to_field():
    names = [item.name for item in fields(CacheNamespace)]
    roots = set()
    for place in range(len(names)):  # one text, in each of the fields
        roots.add(CacheNamespace(**{name: "text" if index == place else "" for index, name in enumerate(names)}).root())
    roots.add(replace(BASE, adapter="ab", salt="c").root())
    roots.add(replace(BASE, adapter="a", salt="bc").root())
    assert len(roots) == len(names) + 2


def test_the_salt_separates_tenants_at_every_page():
    ours, theirs = BASE.root(), replace(BASE, salt="other").root()
    for page in range(4):
        ours, theirs = page_hash(ours, [page] * 4), page_hash(theirs, [page] * 4)
        assert ours != theirs


def test_a_page_is_named_by_all_tokens_before_it():
    root, page = BASE.root(), [5, 6, 7, 8]
    after_one = page_hash(page_hash(root, [1, 2, 3, 4]), page)
    after_other = page_hash(page_hash(root, [1, 2, 3, 5]), page)
    assert len({page_hash(root, page), after_one, after_other}) == 3
    assert after_one == page_hash(page_hash(root, (1, 2, 3, 4)), tuple(page))


@pytest.mark.parametrize("other", [[2, 1, 3], [1, 2], [1, 2, 3, 0], [1, 2, 259], [0, 1, 2], [-1, 2, 3]])
def test_order_length_and_high_bits_count(other):
    assert page_hash(BASE.root(), other) != page_hash(BASE.root(), [1, 2, 3])
