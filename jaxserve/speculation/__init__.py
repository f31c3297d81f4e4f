"""Tokens guessed before the model chooses them: who guesses, and how many guesses each row of a step verifies."""
