"""What can be seen of a running engine: one catalogue of metrics, those who record them, and the timeline of steps."""
