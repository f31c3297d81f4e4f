"""A certificate authority for tests, made by the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate and its private key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates for 127.0.0.1 that are good for a day."""

    folder: Path
    own: Pair

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir()
        own = Pair(folder / "ca.pem", folder / "ca.key")
        _certificate(own, "-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:TRUE")
        return cls(folder, own)

    def issue(self, name: str) -> Pair:
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        signed = ("-CA", str(self.own.cert), "-CAkey", str(self.own.key))
        _certificate(pair, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", *signed)
        return pair


def with_password(key: Path, folder: Path) -> Path:
    """The same private key behind a password."""
    locked = folder / "locked.key"
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked))
    return locked


def _certificate(pair: Pair, *more: str) -> None:
    _openssl("req", "-x509", "-noenc", "-days", "1", *NEW_KEY, "-keyout", str(pair.key), "-out", str(pair.cert), *more)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
