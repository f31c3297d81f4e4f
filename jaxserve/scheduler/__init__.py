"""Decides what runs in each step: requests, the plan, and the one rule that makes both. Never jax."""
