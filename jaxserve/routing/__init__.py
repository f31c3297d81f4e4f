"""Which replica of a fleet a request goes to. Knows nothing of how replicas are reached: the simulator runs the same code."""
