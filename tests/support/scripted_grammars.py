"""Grammars whose every state can be worked out by hand, in place of compiled ones: what may come is a hash of what came."""

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.step.plan import Ints
from tests.support.hash_executor import VOCAB

DEAD = -1  # a seed: its grammar allows nothing after two tokens


def params_of(seed: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=str(seed))


class ScriptedConstraint:
    """Half of its states leave one token, the others a few or all; after some 5 to 24 tokens nothing may follow."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._said: list[int] = []
        self._length = 5 + self._hash(()) % 20

    def allowed(self, said: Sequence[int]) -> list[int]:
        if self._seed == DEAD and len(said) == 2:
            return []
        number = self._hash(said)
        if number % 8 < 4:
            return [number // 8 % VOCAB]
        return list(range(VOCAB)) if number % 8 == 7 else sorted({(number // 8 + step * step) % VOCAB for step in range(5)})

    def now_allowed(self) -> list[int]:
        return self.allowed(self._said)

    def accept(self, token: int) -> bool:
        assert token in self.allowed(self._said), "a token that its mask forbids"
        self._said.append(token)
        return len(self._said) < self._length

    def forced(self) -> list[int]:
        tokens: list[int] = []
        while len(self._said) + len(tokens) < self._length:
            allowed = self.allowed([*self._said, *tokens])
            if len(allowed) != 1:
                break
            tokens += allowed
        return tokens

    def allows(self, tokens: Sequence[int]) -> int:
        places = range(min(len(tokens), self._length - len(self._said)))
        wrong = (place for place in places if tokens[place] not in self.allowed([*self._said, *tokens[:place]]))
        return next(wrong, len(places))

    def checkpoint(self) -> Callable[[], None]:
        said = list(self._said)

        def back() -> None:
            self._said = said

        return back

    def _hash(self, said: Sequence[int]) -> int:
        return zlib.crc32(np.array([self._seed, len(said), *said[-1:]], np.int32).tobytes())


class ScriptedGrammars:
    """What an engine core asks of its grammars, and its masker."""

    words = -(-VOCAB // 32)

    def compile(self, params: StructuredOutputsParams, tenant: str = "") -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(int(params.regex or 0))
        return done

    def release(self, params: StructuredOutputsParams, tenant: str = "") -> None:
        pass

    def close(self) -> None:
        pass

    def constraints(self, params: StructuredOutputsParams) -> Callable[[], ScriptedConstraint]:
        return lambda: ScriptedConstraint(int(params.regex or 0))

    def fill(self, rows: Sequence[tuple[Any, ...]], masks: Ints) -> dict[int, JaxserveError]:
        errors: dict[int, JaxserveError] = {}
        for row, constraint in rows:
            bits = np.zeros(self.words * 32, np.uint8)
            bits[constraint.now_allowed()] = 1
            masks[row] = np.packbits(bits, bitorder="little").view(np.int32)
            if not bits.any():
                errors[row] = InvalidRequestError("nothing may follow", param="structured_outputs")
        return errors
