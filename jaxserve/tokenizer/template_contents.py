"""Whether a chat template reads contents that are lists of parts, as those of models for images do, or texts alone."""

from __future__ import annotations

import jinja2
from jinja2 import nodes

_CONTENT = "content"


def reads_parts(environment: jinja2.Environment, source: str) -> bool:
    """Whether a template goes through a message's content, or takes a part of it by its number.

    A variable called `content`, as macros have it, and one that a content was assigned to are contents.
    """
    tree = environment.parse(source)
    names = {_CONTENT}
    for assigned in tree.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node, names):
            names.add(assigned.target.name)
    loops = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    return loops or any(
        isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, int) and _is_content(item.node, names)
        for item in tree.find_all(nodes.Getitem)
    )


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    match node:
        case nodes.Name(name=name):
            return name in names
        case nodes.Getattr(attr=attribute):
            return bool(attribute == _CONTENT)
        case nodes.Getitem(arg=nodes.Const(value=value)):
            return bool(value == _CONTENT)
        case nodes.Filter(node=inner):
            return _is_content(inner, names)
    return False
