"""What is told of a fleet that cannot be started."""

from __future__ import annotations

from server.fleet.reasons import reason_in

# As Ray Serve 2.60 keeps it of a deployment whose constructor raised.
MESSAGE = """The deployment failed to start 1 times in a row. Error:
RuntimeError: Traceback (most recent call last):
  File "server/fleet/replica.py", line 64, in start
    self._keeping.result()
  File "jaxserve/engine/remote/process.py", line 50, in ready
    raise report.error
jaxserve.errors.ConfigError: model: no checkpoint directory at '/nonexistent/model'
"""


def test_the_reason_of_a_replica_that_cannot_be_built_is_found_in_its_traceback() -> None:
    assert reason_in(MESSAGE) == "model: no checkpoint directory at '/nonexistent/model'"
    assert reason_in("RuntimeError: out of memory") is None
    assert reason_in("") is None
