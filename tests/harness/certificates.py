"""A certificate for brokers and clients on loopback, made by the keytool of the JDK."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PASSWORD: Final = "swordfish"


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 that signs itself.

    Attributes:
        store: a PKCS#12 key store with the private key; its password is `PASSWORD`.
        pem: the certificate alone, which whoever trusts it names as CA.
    """

    store: Path
    pem: Path


def self_signed(folder: Path) -> Certificate:
    """Make a certificate in a folder."""
    made = Certificate(folder / "store.p12", folder / "ca.pem")
    name = ["-storepass", PASSWORD, "-storetype", "PKCS12", "-keystore", str(made.store), "-alias", "broker"]
    key = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext", "SAN=IP:127.0.0.1"]
    for command in (key, ["-exportcert", "-rfc", "-file", str(made.pem)]):
        subprocess.run(["keytool", *command, *name], check=True, capture_output=True)
    return made


def listener_properties(made: Certificate) -> dict[str, str]:
    """Return the broker properties with which its TLS listeners show the certificate."""
    return {
        "ssl.keystore.location": str(made.store),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": PASSWORD,
    }
