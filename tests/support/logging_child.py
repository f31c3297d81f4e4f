"""A child that writes to its standard streams and reports back."""

import sys

from jaxserve.children import adopt

parent, _ = adopt()
print("output", flush=True)
print("log", file=sys.stderr, flush=True)
parent.send(b"done")
parent.receive()
