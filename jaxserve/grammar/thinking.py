"""A budget of thinking: when its tokens are spent, what comes next is the text by which the model's family ends it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from llguidance import LLMatcher

from jaxserve.chat_parsing import ResponseTemplate, ends_of_thinking
from jaxserve.grammar.matching import GrammarConstraint
from jaxserve.grammar.vocabulary import Vocabulary

_KEPT = 256  # characters of what was said last: more than any marker has


class _Place(Enum):
    BEFORE = "before"
    INSIDE = "inside"
    BEHIND = "behind"


class ThinkingText(msgspec.Struct, frozen=True, array_like=True):
    """How thinking begins and ends, as text.

    Attributes:
        begins: texts that begin it.
        ends: texts that end it.
        early_end: what to write to end it.
        begun: whether a response begins inside of it.
        again: whether it may come anywhere and more than once; else at the beginning of a response alone.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    early_end: str
    begun: bool
    again: bool

    @classmethod
    def of(cls, template: ResponseTemplate, *, begun: bool) -> ThinkingText | None:
        """None for a template that does not say how thinking is written."""
        reasoning = template.reasoning
        if reasoning is None:
            return None
        opening = template.fields["reasoning"].open
        literals = opening.literals if opening is not None else ()
        content = template.fields.get("content")
        return cls(
            begins=literals or (reasoning.begin,),
            ends=tuple(filter(None, dict.fromkeys((reasoning.end, *ends_of_thinking(template))))),
            early_end=reasoning.early_end,
            begun=begun or not reasoning.begin,
            again=content is not None and content.open is not None,
        )


class ThinkingMarks:
    """How thinking begins and ends, as text and as tokens."""

    def __init__(self, text: ThinkingText, vocabulary: Vocabulary) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self._names = {token: name.encode() for name, token in vocabulary.special.items()}

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._names.get(token) or self.vocabulary.tokens.decode_bytes([token]) for token in tokens)

    def tokens_of(self, text: str) -> list[int]:
        """Tokens of a text in which names of special tokens stand for them."""
        special = self.vocabulary.special
        names = sorted((name for name in special if name and name in text), key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        tokens: list[int] = []
        for piece in filter(None, pieces):
            tokens += [special[piece]] if piece in special else self.vocabulary.tokens.tokenize_str(piece)
        return tokens

    def can_be_ended(self, matcher: LLMatcher) -> bool:
        """Whether a grammar, at its beginning, lets a budget end the thinking."""
        budget = ThinkingBudget(matcher, self, 0)
        begin = [] if self.text.begun else self.tokens_of(self.text.begins[0])
        if matcher.validate_tokens(begin) < len(begin):
            return False
        for token in begin:
            budget.accept(token)
        return bool(budget.imposed)


class ThinkingBudget(GrammarConstraint):
    """A grammar in which thinking ends after so many tokens, not counting the text that begins it and that which ends it.

    It ends some tokens later where it cannot be ended yet, as within a character.

    Args:
        matcher: its own.
        tokens: of thinking, at most.
    """

    def __init__(self, matcher: LLMatcher, marks: ThinkingMarks, tokens: int) -> None:
        super().__init__(matcher)
        self._marks = marks
        self._left = tokens
        self._place = _Place.INSIDE if marks.text.begun else _Place.BEFORE
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # the last of what was said since the thinking began, or else of what may become its beginning
        if marks.text.begun and tokens <= 0:
            self._impose()

    def accept(self, token: int) -> bool:
        goes_on = super().accept(token)
        if self.imposed:
            self.imposed = self.imposed[1:] if self.imposed[0] == token else ()
        if self._place is not _Place.BEHIND:
            self._text = (self._text + self._decoder.decode(self._marks.bytes_of([token])))[-_KEPT:]
            if self._place is _Place.BEFORE:
                self._look_for_beginning()
            elif not self._look_for_end():
                self._left -= 1
            if self._place is _Place.INSIDE and self._left <= 0 and not self.imposed:
                self._impose()
        return goes_on

    def forced(self) -> Sequence[int]:
        return self.imposed or super().forced()

    def checkpoint(self) -> Callable[[], None]:
        back_in_grammar, decoded = super().checkpoint(), self._decoder.getstate()
        kept = self._left, self._place, self._text, self.imposed

        def back() -> None:
            back_in_grammar()
            self._decoder.setstate(decoded)
            self._left, self._place, self._text, self.imposed = kept

        return back

    def _look_for_beginning(self) -> None:
        begins, again = self._marks.text.begins, self._marks.text.again
        text = self._text if again else self._text.lstrip()
        for begin in begins:
            at = text.find(begin) if again else 0 if text.startswith(begin) else -1
            if at >= 0:
                self._place, self._text = _Place.INSIDE, text[at + len(begin) :]
                self._look_for_end()
                return
        if not again and not any(begin.startswith(text) for begin in begins):
            self._place = _Place.BEHIND

    def _look_for_end(self) -> bool:
        found = [(at, end) for end in self._marks.text.ends if (at := self._text.find(end)) >= 0]
        if not found:
            return False
        at, end = min(found)
        self._place = _Place.BEFORE if self._marks.text.again else _Place.BEHIND
        self._text = self._text[at + len(end) :]
        return True

    def _impose(self) -> None:
        """Make what ends thinking come next: all of it, but what of it was said already and what the grammar has otherwise."""
        marks, text = self._marks, self._text
        if self._decoder.getstate()[0]:
            return  # in the middle of a character
        for said in range(min(len(marks.text.early_end) - 1, len(text)), -1, -1):
            if not text.endswith(marks.text.early_end[:said]):
                continue
            tokens = marks.tokens_of(marks.text.early_end[said:])
            tokens = tokens[: self.matcher.validate_tokens(tokens)]
            written = text + marks.bytes_of(tokens).decode(errors="replace")
            if any(end in written for end in marks.text.ends):
                self.imposed = tokens
                return
