"""Weights: safetensors read straight into each device's shards, or seeded random ones. Start at `load.load_params`."""
