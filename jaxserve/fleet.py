"""The command `python -m jaxserve.fleet CONFIG`: replicas of a model on a Ray cluster behind one ingress."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from jaxserve.config.flags import OneLineParser
from jaxserve.config.fleet import FleetConfig
from jaxserve.config.fleet_file import read_fleet
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.logs import set_up_logging

_LOG = logging.getLogger("jaxserve.fleet")  # it runs as __main__
_EXIT_ERROR = 2
_EXIT_LOST = 3  # what ran is lost; another start may well work


def main(argv: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m jaxserve.fleet", description=__doc__)
    parser.add_argument("config", nargs="?", help="YAML file of the fleet (docs/fleet.md)")
    parser.add_argument("--name", default="jaxserve", help="of the fleet; another one of this name on the cluster is replaced")
    parser.add_argument("--detach", action="store_true", help="leave it running instead of taking it away at the end")
    parser.add_argument("--delete", action="store_true", help="take away the fleet of this name, and leave")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the file, if anything is, and leave")
    try:
        given = parser.parse_args(argv)
        if given.config is None:
            raise ConfigError("config: a fleet needs a YAML file (docs/fleet.md)", param="config")
        config = read_fleet(given.config)
        set_up_logging(config.server.log_level, config.server.log_format)
        if not given.check:
            _run(config, given.name, detach=given.detach, delete=given.delete)
    except JaxserveError as error:
        print(f"jaxserve: {error.message}", file=sys.stderr, flush=True)
        return _EXIT_ERROR
    return 0


def _run(config: FleetConfig, name: str, *, detach: bool, delete: bool) -> None:
    try:
        cluster: Any = import_module("server.fleet.cluster")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("a fleet needs Ray: pip install 'jaxserve[ray]'") from error
    with cluster.connected(config.address, keep=detach or delete), cluster.exit_when_lost(_EXIT_LOST):
        fleet = cluster.Fleet(config, name)
        if delete:
            fleet.delete()
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
        try:
            print("ready:", *(f"{one.http} {one.grpc}" for one in fleet.deploy()), flush=True)
            if detach:
                return
            while True:
                signal.pause()
        except KeyboardInterrupt:
            _LOG.info("the fleet is taken away")
        fleet.delete()


if __name__ == "__main__":
    sys.exit(main())
