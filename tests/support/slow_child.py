"""A front end that never is ready, unless its spec says so."""

import asyncio

from jaxserve.children import adopt
from server.processes.control import Control
from server.processes.specs import READY


async def main() -> None:
    parent, spec = adopt()
    control = Control(*await asyncio.open_connection(sock=parent.socket), {})
    if spec == b"ready":
        control.tell(READY)
    await control.gone()


if __name__ == "__main__":
    asyncio.run(main())
