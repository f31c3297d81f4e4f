"""Files and batches: what is kept of them, and what runs them. Knows nothing of HTTP."""
