"""BodyAnswers: the lines of jobs, answered as the endpoints that they name would answer them."""

from __future__ import annotations

import logging
from http import HTTPStatus

from jaxserve.clock import RealClock
from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, JaxserveError
from jaxserve.jobs.answers import ASKED_AGAIN, STOPS_JOB, Answer
from jaxserve.jobs.lines import Line
from server.errors import OUTCOMES, http_body
from server.gateway.call import CURRENT
from server.http.bodies import answer_body
from server.requests import new_id
from server.unsupported.notes import NOTES, Lenience, Notes

logger = logging.getLogger(__name__)


class BodyAnswers:
    """Answers by an engine; see jaxserve.jobs.answers.Answers.

    Args:
        client: the engine.
        tenant: whose requests they are.
        lenience: what becomes of fields that are not supported; by default they are refused.
    """

    def __init__(self, client: EngineClient, tenant: str = "", lenience: Lenience | None = None) -> None:
        self._client = client
        self._tenant = tenant
        self._lenience = lenience or Lenience(RealClock())

    async def answer(self, line: Line) -> Answer:
        """The endpoint's reply, or its error body."""
        NOTES.set(Notes(self._lenience))  # told in the log alone: lines have no headers
        try:
            reply = await answer_body(self._client, line.url, line.body, tenant=self._tenant)
        except JaxserveError as error:
            if error.code in ASKED_AGAIN | STOPS_JOB:
                raise
            return _refusal(error)
        except Exception as error:
            logger.exception("the request of line %d failed", line.number)
            return _refusal(InternalError(f"the request failed: {error!r}"))
        return Answer(HTTPStatus.OK, reply["id"], reply)


def _refusal(error: JaxserveError) -> Answer:
    call = CURRENT.get()
    return Answer(OUTCOMES[error.code].http, new_id("req") if call is None else call.request_id, http_body(error))
