"""Keys of engines that listen on a network: CurveZMQ encrypts, and only who has the engine's public key gets in.

So that key is told to nobody but the engine's front ends: who connects shows no key of its own that is looked at.
https://rfc.zeromq.org/spec/26/
"""

from __future__ import annotations

import msgspec
import zmq


class CurveKeys(msgspec.Struct, frozen=True):
    """A key pair, Z85-encoded."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> CurveKeys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


def lock(listening: zmq.Socket[bytes], keys: CurveKeys) -> None:
    """Let in only who has the public key. To be called before the socket is bound."""
    listening.curve_server = True
    listening.curve_publickey, listening.curve_secretkey = keys.public.encode(), keys.secret.encode()


def unlock(connecting: zmq.Socket[bytes], public: str) -> None:
    """Connect as one who has the public key. To be called before the socket connects."""
    own, secret = zmq.curve_keypair()  # of this connection alone
    connecting.curve_serverkey = public.encode()
    connecting.curve_publickey, connecting.curve_secretkey = own, secret
