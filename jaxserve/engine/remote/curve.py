"""Keys of engines that listen on a network: CurveZMQ encrypts, and only who has the engine's public key gets in.

So that key is told to nobody but the engine's front ends: who connects shows no key of its own that is looked at.
https://rfc.zeromq.org/spec/26/
"""

from __future__ import annotations

import ipaddress

import msgspec
import zmq

from jaxserve.errors import ConfigError


class CurveKeys(msgspec.Struct, frozen=True):
    """A key pair, Z85-encoded."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> CurveKeys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


def require_key(address: str, key: object | None) -> None:
    """Raise ConfigError for an endpoint that other machines reach without a key: whoever connects might use the engine."""
    if key is None:
        if not _is_of_this_machine(address):
            raise ConfigError(f"{address} is reached by other machines, so it needs keys", param="keys")
    elif not zmq.has("curve"):
        raise ConfigError("this libzmq was built without CURVE, so it cannot use keys", param="keys")


def _is_of_this_machine(address: str) -> bool:
    transport, _, rest = address.partition("://")
    if transport in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, an interface, or "*" for all of them
        return host == "localhost"


def lock(listening: zmq.Socket[bytes], keys: CurveKeys) -> None:
    """Let in only who has the public key. To be called before the socket is bound."""
    listening.curve_server = True
    listening.curve_publickey, listening.curve_secretkey = keys.public.encode(), keys.secret.encode()


def unlock(connecting: zmq.Socket[bytes], public: str) -> None:
    """Connect as one who has the public key. To be called before the socket connects."""
    own, secret = zmq.curve_keypair()  # of this connection alone
    connecting.curve_serverkey = public.encode()
    connecting.curve_publickey, connecting.curve_secretkey = own, secret
