"""vLLM's tokens in, tokens out: how frameworks for reinforcement learning ask a server, and how they end what it does."""
