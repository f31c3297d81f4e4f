"""A front end that never is ready, unless its spec says so."""

import asyncio

from jaxserve.children import adopt
from server.processes.control import Control
from server.processes.specs import NowReady


async def main() -> None:
    parent, spec = adopt()
    control = Control(*await asyncio.open_connection(sock=parent.socket), lambda notice: None)
    if spec == b"ready":
        control.tell(NowReady())
    await control.gone()


if __name__ == "__main__":
    asyncio.run(main())
