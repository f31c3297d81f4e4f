"""A load generator for servers that speak OpenAI's completions: `run` sends a workload, `report` says what clients saw."""
