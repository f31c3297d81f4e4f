"""What became of one request, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxserve.workload.requests import WorkloadRequest


@dataclass(slots=True)
class RequestOutcome:
    """Times are seconds of `time.perf_counter`.

    Attributes:
        due: when it should have been sent; in a closed loop when its client was free.
        sent: when it was, the last time.
        pieces: when each piece of its text came.
        ended: when its reply was whole, or it was given up.
        prompt_tokens, cached_tokens, output_tokens: as the server counts them.
        status: HTTP status of the last reply, 0 without one.
        error: what went wrong: the code of the server's error, or what the network said; None if it finished.
        retries: how many times it came back after a refusal.
    """

    request: WorkloadRequest
    due: float
    sent: float = 0.0
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    status: int = 0
    error: str | None = None
    retries: int = 0

    @property
    def ttft(self) -> float:
        """Seconds from when it should have been sent to the first piece: waiting for a free client counts."""
        return self.pieces[0] - self.due

    @property
    def total(self) -> float:
        return self.ended - self.due

    @property
    def itl(self) -> float | None:
        """Mean seconds between tokens; None for an output of one token."""
        if self.output_tokens < 2 or not self.pieces:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.output_tokens - 1)
