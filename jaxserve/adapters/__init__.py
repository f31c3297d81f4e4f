"""Adapters (LoRA) as they come, and as the devices take them."""
