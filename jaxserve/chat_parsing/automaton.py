"""Regular expressions matched as text arrives: each character is examined once, however long a match takes to be certain."""

from __future__ import annotations

from dataclasses import dataclass, field

import regex

from jaxserve.chat_parsing.expressions import Anchor, Character, Choice, Group, Look, Node, Repeat, Sequence, read_expression

_MAX_PROGRAM = 4000
_MAX_STATES = 2000  # and
_MAX_CHARACTERS = 20_000  # that are kept; they are dropped and made again beyond that
MAX_LOOK_BEHIND = 64

_Tags = tuple[int, ...]  # indices of positions that a thread notes
START, END = 0, 1  # tags: where a match starts and where it ends


@dataclass(slots=True)
class Edge:
    """What one character does to a state's threads.

    Attributes:
        moves: per thread of the next state the thread that it comes from (-1: none, a match may begin here) and the tags
            that it sets; None: the same threads in the same order.
        accepted: the thread whose match ends here, with its tags. Threads that are preferred to it go on.
    """

    state: State
    moves: tuple[tuple[int, _Tags], ...] | None
    accepted: tuple[int, _Tags] | None
    is_fresh: bool  # every thread begins here


@dataclass(slots=True, eq=False)
class State:
    """Threads in the order of preference, by the instructions that they wait at."""

    threads: tuple[int, ...]
    edges: dict[tuple[int, bool, bool], Edge] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Instruction:
    """`tests`: a class of characters, by its index. `next`: where to go on, the preferred way first."""

    kind: str
    next: tuple[int, ...] = ()
    argument: int = 0


class Pattern:
    """A compiled regular expression. It finds what a backtracking matcher would: the leftmost, preferred match.

    Threads of a nondeterministic automaton note positions (the match's and its groups'); sets of threads are made into the
    states of a deterministic one when they first occur.

    Attributes:
        source: the regular expression.
        group_tags: per named group the tag of its start; that of its end follows.
        look_behind: how many characters before a match may decide about it.
        idle: the threads of a match that may begin at any position but the first.
        first_characters: the characters that a match can begin with; None if a match may be empty.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError for syntax that is not supported."""
        self.source = source
        self._program: list[_Instruction] = []
        self._classes: list[regex.Pattern[str]] = []
        self._class_index: dict[str, int] = {}
        self.group_tags: dict[str, int] = {}
        tree = read_expression(source)
        self.look_behind = 0
        self._begin = _Compiler(self).compile(tree)
        self.tag_count = 2 + 2 * len(self.group_tags)
        self._states: dict[tuple[int, ...], State] = {}
        self._characters: dict[str, int] = {}
        self._kinds: dict[tuple[bool, ...], int] = {}
        self.idle = self.begin(at_start=False, open=True)
        self.first_characters = self._first_characters()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __reduce__(self) -> tuple[type[Pattern], tuple[str]]:
        return Pattern, (self.source,)

    def class_index(self, source: str) -> int:
        if source not in self._class_index:
            self._class_index[source] = len(self._classes)
            self._classes.append(regex.compile(source, regex.DOTALL))
        return self._class_index[source]

    def add(self, kind: str, next: tuple[int, ...] = (), argument: int = 0) -> int:
        if len(self._program) >= _MAX_PROGRAM:
            raise ValueError("is too long")
        self._program.append(_Instruction(kind, next, argument))
        return len(self._program) - 1

    def patch(self, index: int, next: tuple[int, ...]) -> None:
        before = self._program[index]
        self._program[index] = _Instruction(before.kind, next, before.argument)

    def begin(self, *, at_start: bool, open: bool) -> Edge:
        """The threads of a match that begins here. `open`: its start may be here."""
        return self._edge([(self._begin, -1)], 0, at_start=at_start, open=open)

    def _first_characters(self) -> regex.Pattern[str] | None:
        """The characters that a match can begin with; None if a match may be empty or begin with any."""
        instructions = [self._program[index] for index in self.idle.state.threads]
        if self.idle.accepted is not None or any(item.kind != "character" for item in instructions):
            return None
        classes = {self._classes[item.argument].pattern for item in instructions}
        return regex.compile("|".join(sorted(classes)) or r"(?!)", regex.DOTALL)

    def step(self, state: State, character: str, *, restarts: bool, open: bool) -> Edge:
        """`restarts`: a match may also begin after the character."""
        kind = self._characters.get(character)
        if kind is None:
            kind = self._kind(character)
        edge = state.edges.get((kind, restarts, open))
        if edge is None:
            ways = [
                (instruction.next[0], index)
                for index, instruction in enumerate(self._program[pc] for pc in state.threads)
                if instruction.kind == "character" and self._classes[instruction.argument].match(character)
            ]
            edge = state.edges[kind, restarts, open] = self._edge(
                [*ways, (self._begin, -1)] if restarts else ways, len(state.threads), open=open
            )
        return edge

    def finish(self, state: State) -> tuple[int, _Tags] | None:
        """The preferred thread that matches if the text ends here."""
        for index, pc in enumerate(state.threads):
            if self._program[pc].kind == "end":
                accepted = self._edge([(self._program[pc].next[0], index)], len(state.threads), open=True).accepted
                if accepted is not None:
                    return accepted
        return None

    def after(self, state: State, first: int) -> State:
        """The state without its first threads."""
        return self._state(state.threads[first:])

    def _kind(self, character: str) -> int:
        if len(self._characters) > _MAX_CHARACTERS:
            self._characters.clear()
        matches = tuple(bool(test.match(character)) for test in self._classes)
        kind = self._characters[character] = self._kinds.setdefault(matches, len(self._kinds))
        return kind

    def _state(self, threads: tuple[int, ...]) -> State:
        if len(self._states) > _MAX_STATES:
            self._states = {}
        return self._states.setdefault(threads, State(threads))

    def _edge(self, ways: list[tuple[int, int]], thread_count: int, *, open: bool, at_start: bool = False) -> Edge:
        """The threads that go on at instructions; `ways`: these, and the threads that come there."""
        threads: list[int] = []
        moves: list[tuple[int, _Tags]] = []
        seen: set[int] = set()
        pending: list[tuple[int, int, _Tags]] = [(pc, source, ()) for pc, source in reversed(ways)]
        accepted: tuple[int, _Tags] | None = None
        while pending:
            pc, source, tags = pending.pop()
            if pc in seen:
                continue
            seen.add(pc)
            instruction = self._program[pc]
            match instruction.kind:
                case "match":
                    accepted = (source, tags)
                    break  # the other threads are less preferred
                case "character" | "end":
                    threads.append(pc)
                    moves.append((source, tags))
                case "start" if not at_start:
                    continue
                case "tag" if instruction.argument == START and not open:
                    continue
                case "tag":
                    pending.append((instruction.next[0], source, (*tags, instruction.argument)))
                case _:
                    pending.extend((way, source, tags) for way in reversed(instruction.next))
        is_same = len(moves) == thread_count and all(source == index and not tags for index, (source, tags) in enumerate(moves))
        is_fresh = accepted is None and all(source == -1 for source, _ in moves)
        return Edge(self._state(tuple(threads)), None if is_same else tuple(moves), accepted, is_fresh)


class _Compiler:
    """Writes the instructions of a tree, from its end to its beginning."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern

    def compile(self, tree: Node) -> int:
        return self._write(tree, self._pattern.add("match"), head=True, tail=True)

    def _write(self, node: Node, then: int, *, head: bool, tail: bool) -> int:
        """Instructions that match a node and go on at `then`; `head`, `tail`: nothing is before it or after it."""
        pattern = self._pattern
        if head and not _looks_behind(node):
            return pattern.add("tag", (self._write(node, then, head=False, tail=tail),), START)
        match node:
            case Character(source):
                return pattern.add("character", (then,), pattern.class_index(source))
            case Sequence(items):
                for index in range(len(items) - 1, -1, -1):
                    is_head = head and index == 0
                    then = self._write(items[index], then, head=is_head, tail=tail and index == len(items) - 1)
                return then
            case Choice(items):
                return pattern.add("way", tuple(self._write(item, then, head=head, tail=tail) for item in items))
            case Group(name, item):
                tag = pattern.group_tags.setdefault(name, 2 + 2 * len(pattern.group_tags))
                end = pattern.add("tag", (then,), tag + 1)
                return pattern.add("tag", (self._write(item, end, head=head, tail=tail),), tag)
            case Anchor(at):
                return pattern.add(at, (then,))
            case Look(item, behind):
                return self._write_look(item, then, behind=behind, head=head, tail=tail)
            case Repeat():
                return self._write_repeat(node, then)

    def _write_look(self, item: Node, then: int, *, behind: bool, head: bool, tail: bool) -> int:
        if not (head if behind else tail):
            raise ValueError("has a look-around in the middle, which is not supported: it must be the first or the last part")
        if behind:
            self._pattern.look_behind = max(self._pattern.look_behind, _longest(item))
            return self._write(item, self._pattern.add("tag", (then,), START), head=False, tail=False)
        return self._pattern.add("tag", (self._write(item, then, head=False, tail=False),), END)

    def _write_repeat(self, node: Repeat, then: int) -> int:
        def ways(inside: int, out: int) -> tuple[int, ...]:
            return (out, inside) if node.lazy else (inside, out)

        if node.most is None:
            loop = self._pattern.add("way")
            self._pattern.patch(loop, ways(self._write(node.item, loop, head=False, tail=False), then))
            then = loop
        else:
            out = then
            for _ in range(node.most - node.least):
                then = self._pattern.add("way", ways(self._write(node.item, then, head=False, tail=False), out))
        for _ in range(node.least):
            then = self._write(node.item, then, head=False, tail=False)
        return then


def _looks_behind(node: Node) -> bool:
    match node:
        case Look(item, behind):
            return behind or _looks_behind(item)
        case Sequence(items) | Choice(items):
            return any(map(_looks_behind, items))
        case Group(_, item) | Repeat(item):
            return _looks_behind(item)
        case _:
            return False


def _longest(node: Node) -> int:
    match node:
        case Character():
            return 1
        case Sequence(items):
            return sum(map(_longest, items))
        case Choice(items):
            return max(map(_longest, items))
        case Group(_, item):
            return _longest(item)
        case Repeat(item, _, most) if most is not None and (length := most * _longest(item)) <= MAX_LOOK_BEHIND:
            return length
        case _:
            raise ValueError(f"looks behind more than {MAX_LOOK_BEHIND} characters, which is not supported")
