"""Runs plans: pads them to a bucket, runs one compiled step with the KV cache donated, and hands back a handle."""
