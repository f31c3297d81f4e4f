"""EleutherAI's lm-eval harness over an engine in this process."""
