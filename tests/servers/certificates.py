"""Throw-away certificates: an authority, a server that it knows, and a client that it knows."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A server is a client, too: etcd's JSON gateway shows its certificate to the very etcd it belongs to.
_CONFIGURATION = """
[req]
prompt = no
distinguished_name = name
[name]
CN = ${ENV::WHO}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Certificates:
    """The files in a folder, in PEM: `certificate("server")` and `key("server")`; `authority`, `client` likewise."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        (folder / "openssl.cnf").write_text(_CONFIGURATION)
        made = cls(folder)
        made._make("authority")
        made._make("server", signed=True)
        made._make("client", signed=True)
        return made

    def certificate(self, who: str) -> str:
        return str(self.folder / f"{who}.pem")

    def key(self, who: str) -> str:
        return str(self.folder / f"{who}.key")

    def arguments(self) -> list[str]:
        """For a server: it shows its certificate, and looks at a client's only if there is one."""
        return [
            *("--tls-cert-file", self.certificate("server")),
            *("--tls-key-file", self.key("server")),
            *("--tls-ca-cert-file", self.certificate("authority")),
            *("--tls-auth-clients", "optional"),
        ]

    def options(self) -> dict[str, Any]:
        """For a client of redis-py: it trusts the authority, and shows its certificate."""
        return {
            "ssl": True,
            "ssl_ca_certs": self.certificate("authority"),
            "ssl_certfile": self.certificate("client"),
            "ssl_keyfile": self.key("client"),
        }

    def _make(self, who: str, signed: bool = False) -> None:
        command = ["openssl", "req", "-x509", "-config", str(self.folder / "openssl.cnf")]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-extensions", who, "-days", "2"]
        command += ["-keyout", self.key(who), "-out", self.certificate(who)]
        if signed:
            command += ["-CA", self.certificate("authority"), "-CAkey", self.key("authority")]
        subprocess.run(command, env={**os.environ, "WHO": who}, check=True, capture_output=True)
