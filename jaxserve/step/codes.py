"""Tokens that are on the device only, as plans name them: what slots chose last, and what a draft model guessed after it.

A plan need not wait for either. A negative token of a plan is one of these; the executor looks it up in `latest`
int32[slots+1,2+N]: of each slot the token last chosen, tokens of its sequence, and N guesses at those that follow.
"""

from __future__ import annotations

GUESSES = 2  # columns of `latest` before those of guesses


def sampled_token(slot: int) -> int:
    """The token last sampled in a slot."""
    return -1 - slot


def guessed_token(slot: int, place: int, num_slots: int) -> int:
    """The guess at the token `place` behind the one last sampled in one of so many slots, counted from 0."""
    return -1 - slot - (1 + place) * (num_slots + 1)
