"""etcd: one, or three that agree."""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterable
from shutil import which
from types import TracebackType
from typing import Any, Self

from tests.servers.certificates import Certificates
from tests.servers.ports import BUS, HOST, free_ports
from tests.servers.process import Process
from tests.servers.waiting import until

ETCD = which("etcd") or "/usr/bin/etcd"


class Etcd(Process):
    """A running etcd. `arguments` are the program's own. With certificates it speaks TLS, with clients that show theirs.

    `members` are the ports of all in its cluster; it listens for the others on its own plus BUS.
    """

    ready = b"ready to serve client requests"
    taken = "address already in use"

    def __init__(
        self,
        *arguments: str,
        ports: Iterable[int] | None = None,
        members: Iterable[int] = (),
        certificates: Certificates | None = None,
    ) -> None:
        self.arguments = arguments
        self.members = tuple(members)
        self.certificates = certificates
        self.token = ""
        """Of the user as whom `ask` asks."""
        super().__init__(ports)

    @property
    def where(self) -> str:
        return f"{HOST}:{self.port}"

    def url(self, key: str, user: str = "") -> str:
        if self.certificates is None:
            return f"etcd://{user}{self.where}{key}"
        files = f"ca={self.certificates.certificate('authority')}"
        files += f"&cert={self.certificates.certificate('client')}"
        files += f"&key={self.certificates.key('client')}"
        return f"etcds://{user}{self.where}{key}?{files}"

    def ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        """A look from the side."""
        connection = self._connection()
        headers = {"Authorization": self.token} if self.token else {}
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(question), headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path}: {answer}")
        return answer

    def put(self, key: str, text: bytes) -> int:
        """The revision that this is."""
        put = {"key": _base64(key.encode()), "value": _base64(text)}
        return int(self.ask("kv/put", put)["header"]["revision"])

    def get(self, key: str) -> bytes | None:
        found = self.ask("kv/range", {"key": _base64(key.encode())}).get("kvs", [])
        return b64decode(found[0].get("value", "")) if found else None

    def delete(self, key: str) -> None:
        self.ask("kv/deleterange", {"key": _base64(key.encode())})

    def compact(self, revision: int) -> None:
        """Forget what was before."""
        self.ask("kv/compaction", {"revision": revision, "physical": True})

    def require_passwords(self, user: str, password: str) -> None:
        """From now on: of this user, who may do everything."""
        for name in {"root", user}:
            self.ask("auth/user/add", {"name": name, "password": password})
            self.ask("auth/user/grant", {"user": name, "role": "root"})
        self.ask("auth/enable", {})
        self.token = self.ask("auth/authenticate", {"name": "root", "password": password})["token"]

    def allow_to_read(self, user: str, password: str, key: str) -> None:
        """A user who may do this and nothing else."""
        self.ask("auth/user/add", {"name": user, "password": password})
        self.ask("auth/role/add", {"name": user})
        permission = {"permType": "READ", "key": _base64(key.encode())}
        self.ask("auth/role/grant", {"name": user, "perm": permission})
        self.ask("auth/user/grant", {"user": user, "role": user})

    def _connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection(HOST, self.port, timeout=10)
        context = ssl.create_default_context(cafile=self.certificates.certificate("authority"))
        context.load_cert_chain(
            self.certificates.certificate("client"), self.certificates.key("client")
        )
        return http.client.HTTPSConnection(HOST, self.port, timeout=10, context=context)

    def _command(self, port: int) -> list[str]:
        scheme = "http" if self.certificates is None else "https"
        url, peer = f"{scheme}://{HOST}:{port}", f"http://{HOST}:{port + BUS}"
        members = self.members or (port,)
        cluster = ",".join(f"{one}=http://{HOST}:{one + BUS}" for one in members)
        command = [ETCD, "--name", str(port), "--data-dir", "kept", "--unsafe-no-fsync"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", cluster, "--initial-cluster-token", str(members[0])]
        # Alone it elects itself, soon. Among others, who stands still for two seconds shall not lose its office by that.
        beat, patience = ("50", "500") if len(members) == 1 else ("300", "3000")
        command += ["--heartbeat-interval", beat, "--election-timeout", patience]
        if self.certificates is not None:
            command += ["--cert-file", self.certificates.certificate("server")]
            command += ["--key-file", self.certificates.key("server")]
            command += ["--trusted-ca-file", self.certificates.certificate("authority")]
            command += ["--client-cert-auth"]
        return [*command, *self.arguments]


class EtcdCluster:
    """Three etcds; two of them are enough. The last one leads."""

    def __init__(self) -> None:
        ports = free_ports()
        members = sorted({next(ports), next(ports), next(ports)})
        self.nodes: list[_Member] = []
        try:
            self.nodes += [_Member(ports=[port], members=members) for port in members]
            for node in self.nodes:
                until(node.is_serving, "they have met")
            self.nodes.sort(key=_Member.is_leading)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def url(self, key: str) -> str:
        return f"etcd://{','.join(node.where for node in self.nodes)}{key}"

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class _Member(Etcd):
    """Alone it cannot serve, so all are started before one is waited for."""

    ready = b"starting member"

    def is_serving(self) -> bool:
        return Etcd.ready in self._log.read_bytes()

    def is_leading(self) -> bool:
        status = self.ask("maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])


def _base64(text: bytes) -> str:
    return b64encode(text).decode()
