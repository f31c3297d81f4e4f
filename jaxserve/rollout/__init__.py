"""Rollouts for trainers: log-probabilities compared with a trainer's, adapters to trainers' interfaces."""
