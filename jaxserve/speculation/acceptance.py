"""How often guesses are right, learned from the text that came: also of guesses that no step verified.

It is the same figure, for a draft counts if it is the token that the row chooses anyway. So a request whose text begins to repeat
is found without a draft being spent on it, and one of which nothing is guessed right costs a look now and then.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.speculation.drafter import NOTHING, Guess, Guesser

RATE = 0.25  # weight of the newest guess
PRIOR = 0.6  # chance of a token that nothing is known of
POSITIONS = 8  # of a guess that are told apart; later ones are like the last
MAX_SKIPPED = 15  # tokens without a look, after looks that found nothing right


class Acceptance:
    """Chances that the token at each position of a guess is right if those before it are: decayed averages."""

    def __init__(self) -> None:
        self._chances = [PRIOR] * POSITIONS

    def observe(self, num_right: int, num_known: int) -> None:
        """Of a guess `num_known` tokens can be judged; the first `num_right` came, and no more."""
        for position in range(min(num_known, num_right + 1)):
            place = min(position, POSITIONS - 1)
            self._chances[place] += RATE * ((position < num_right) - self._chances[place])

    def all_right(self, most: int) -> list[float]:
        """Chances that the first token is right, the first two are, and so on."""
        chance, found = 1.0, []
        for position in range(most):
            chance *= self._chances[min(position, POSITIONS - 1)]
            found.append(chance)
        return found


class Follower:
    """Follows one text: guesses what comes, and sees what came.

    Attributes:
        guess: the latest, as far as what came does not contradict it.
    """

    def __init__(self, guesser: Guesser) -> None:
        self.guess = NOTHING
        self._guesser = guesser
        self._acceptance = {False: Acceptance(), True: Acceptance()}  # of guesses by short and by long matches
        self._start = 0  # tokens that the guess was made from
        self._misses = 0  # looks in a row that found nothing right
        self._next = 0  # tokens at which to look again

    def look(self, tokens: Sequence[int], most: int) -> Guess:
        """What may follow these tokens, `most` at most."""
        self._judge(tokens)
        self.guess = NOTHING
        if len(tokens) >= self._next:
            self.guess, self._start = self._guesser.propose(tokens, most), len(tokens)
            if not self.guess.tokens:
                self._missed(len(tokens))
        return self.guess

    def watch(self, tokens: Sequence[int], most: int) -> Guess:
        """The latest guess if it may still be right; else what may follow these tokens."""
        guess, known = self.guess.tokens, len(tokens) - self._start
        if known < len(guess) and tuple(tokens[self._start :]) == guess[:known]:
            return self.guess
        return self.look(tokens, most)

    def chances(self, most: int) -> list[float]:
        """That the first token of the guess is right, the first two are, and so on."""
        return self._acceptance[self.guess.is_long].all_right(min(most, len(self.guess.tokens)))

    def end(self, tokens: Sequence[int]) -> None:
        """The text is complete."""
        self._guesser.end(tokens)

    def _judge(self, tokens: Sequence[int]) -> None:
        guess = self.guess.tokens
        known = min(len(guess), len(tokens) - self._start)
        if known <= 0:
            return
        came = tokens[self._start : self._start + known]
        right = next((place for place in range(known) if came[place] != guess[place]), known)
        self._acceptance[self.guess.is_long].observe(right, known)
        if right:
            self._misses = 0
        else:
            self._missed(self._start)

    def _missed(self, place: int) -> None:
        self._misses += 1
        self._next = place + 1 + min(2 ** (self._misses - 1) - 1, MAX_SKIPPED)
