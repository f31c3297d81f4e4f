"""A child that says what a variable of its environment is, and then everything it is told."""

import os

from jaxserve.children import adopt

if __name__ == "__main__":
    parent, first = adopt()
    print("printed by the child", flush=True)
    parent.send(os.environ[first.decode()].encode())
    while (message := parent.receive()) is not None:
        parent.send(message)
