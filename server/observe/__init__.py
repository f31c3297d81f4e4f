"""What a front end tells of its exchanges: metrics, access lines, traces, readiness."""
