"""What a mutant is, where they can be, and drawing some of them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.mutation.areas import AREAS, PER_AREA, Area

_SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_C_SWAPPED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "+",
    "&&": "||",
    "||": "&&",
}
_C_OPERATOR = re.compile(r"(?<=[\w)\]] )(<=|>=|==|!=|&&|\|\||[<>+*-])(?= [\w(])")


@dataclass(frozen=True, order=True)
class Mutant:
    """One replacement in one file.

    Attributes:
        line: its number, from 1, when the mutant was drawn.
        context: that line as it was, which finds the place again.
        column: in characters, from 0.
        before, after: the text that is replaced, which is within the line, and by what.
    """

    area: str
    path: str
    line: int
    column: int
    before: str
    after: str
    context: str

    def place(self, text: str) -> int | None:
        """The line that it is on now, counted from 0: the nearest that reads as it did; None if there is none."""
        lines = text.split("\n")
        same = [number for number, line in enumerate(lines) if line == self.context]
        return min(same, key=lambda number: abs(number - self.line + 1), default=None)

    def applied(self, text: str) -> str:
        """The mutated file. Raises ValueError if the place is not there any more."""
        lines, place = text.split("\n"), self.place(text)
        if place is None:
            raise ValueError(f"{self.path}:{self.line}: {self.context.strip()!r} is not there any more")
        line, end = lines[place], self.column + len(self.before)
        lines[place] = line[: self.column] + self.after + line[end:]
        return "\n".join(lines)


def draw(root: Path, seed: int) -> list[Mutant]:
    """PER_AREA mutants of each area, of as many files as possible."""
    return [mutant for area in AREAS for mutant in sorted(_drawn(area, root, Random(f"{seed} {area.name}")))]


def _drawn(area: Area, root: Path, random: Random) -> list[Mutant]:
    finder: Callable[[str], Iterator[tuple[int, int, str, str]]] = _in_c if area.suffix == ".cc" else _in_python
    found: list[list[Mutant]] = []
    for path in area.files(root):
        text, name = path.read_text(), path.relative_to(root).as_posix()
        lines = text.split("\n")
        places = sorted(set(finder(text)))
        of_file = [Mutant(area.name, name, line, at, old, new, lines[line - 1]) for line, at, old, new in places]
        random.shuffle(of_file)
        found.append(of_file)
    random.shuffle(found)
    drawn: list[Mutant] = []
    while len(drawn) < PER_AREA and any(found):
        drawn += [of_file.pop() for of_file in found if of_file]  # one of each file, before the next
    return drawn[:PER_AREA]


def _in_c(text: str) -> Iterator[tuple[int, int, str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        code = line.split("//", 1)[0]
        if code.lstrip().startswith(("#", "template", "*", "/*")) or "<<" in code:
            continue
        for match in _C_OPERATOR.finditer(code):
            yield number, match.start(), match.group(), _C_SWAPPED[match.group()]


def _in_python(text: str) -> Iterator[tuple[int, int, str, str]]:
    tree = ast.parse(text)
    skipped = {id(inner) for node in ast.walk(tree) for outer in _unmutated(node) for inner in ast.walk(outer)}
    lines = [line.encode() for line in text.split("\n")]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for line, start, end, before, after in _of_node(node):
            raw = lines[line - 1][start:end].decode()
            at = raw.find(before)
            if at >= 0 and "\n" not in raw:
                yield line, len(lines[line - 1][:start].decode()) + at, before, after


def _unmutated(node: ast.AST) -> Sequence[ast.AST]:
    """What a node has that no test should notice, or that is no code: annotations, and the texts of errors and logs."""
    match node:
        case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.AST() as annotation):
            return [annotation]
        case (
            ast.FunctionDef(returns=returns, decorator_list=decorators)
            | ast.AsyncFunctionDef(returns=returns, decorator_list=decorators)
        ):
            return [*decorators, *([] if returns is None else [returns])]
        case ast.ClassDef(decorator_list=decorators):
            return decorators
        case ast.JoinedStr():
            return [node]
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return [node]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
            return [node]
    return []


def _of_node(node: ast.AST) -> Iterator[tuple[int, int, int, str, str]]:
    """Line, first and last column in bytes, what is replaced there first, and by what."""
    match node:
        case ast.Compare(left=left, ops=operators, comparators=rights):
            for one, operator, other in zip([left, *rights], operators, rights, strict=False):
                yield from _between(one, operator, other)
        case ast.BinOp(left=left, op=operator, right=right) if not isinstance(left, ast.Constant) or isinstance(left.value, int):
            yield from _between(left, operator, right)
        case ast.BoolOp(op=operator, values=values):
            for one, other in itertools.pairwise(values):
                yield from _between(one, operator, other)
        case ast.UnaryOp(op=ast.Not(), operand=operand) if operand.lineno == node.lineno:
            yield node.lineno, node.col_offset, operand.col_offset, "not ", ""
        case ast.Constant(value=bool(value)):
            yield node.lineno, node.col_offset, node.end_col_offset or 0, str(value), str(not value)
        case ast.Constant(value=int(value)):
            yield node.lineno, node.col_offset, node.end_col_offset or 0, str(value), str(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield node.lineno, node.col_offset, node.func.end_col_offset or 0, name, _CALLED[name]
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if isinstance(
            test, ast.Name | ast.Attribute | ast.Call
        ):
            if test.lineno == test.end_lineno:
                yield test.lineno, test.col_offset, test.end_col_offset or 0, (text := ast.unparse(test)), f"(not {text})"
        case ast.Expr(value=ast.Call() as call) if call.lineno == call.end_lineno:
            yield call.lineno, call.col_offset, call.end_col_offset or 0, ast.unparse(call), "pass"
        case ast.AugAssign(op=ast.Add()) if node.target.lineno == node.value.lineno:
            yield node.lineno, node.target.end_col_offset or 0, node.value.col_offset, "+=", "-="


def _between(left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[tuple[int, int, int, str, str]]:
    if left.end_lineno == right.lineno and type(operator) in _SWAPPED:
        yield right.lineno, left.end_col_offset or 0, right.col_offset, *_SWAPPED[type(operator)]
