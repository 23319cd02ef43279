"""ZooKeeper: one, alone."""

from __future__ import annotations

from collections.abc import Iterable
from shutil import which
from typing import Any

from kazoo.client import KazooClient

from tests.servers.ports import HOST
from tests.servers.process import Process

JAVA = which("java") or "/usr/bin/java"
CLASSES = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
"""Its own manifest names the others that it needs."""
HURRY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dzookeeper.forceSync=no")


class ZooKeeper(Process):
    """A running ZooKeeper. `properties` are Java's, such as `jute.maxbuffer=20000000`."""

    ready = b"ContainerManager"  # the last that it says only if it starts

    def __init__(self, *properties: str, ports: Iterable[int] | None = None) -> None:
        self.properties = properties
        self._clients: list[Any] = []
        super().__init__(ports)

    @property
    def where(self) -> str:
        return f"{HOST}:{self.port}"

    def url(self, path: str) -> str:
        return f"zookeeper://{self.where}{path}"

    def client(self, **options: Any) -> Any:
        """A client with a session; ended when the server is stopped."""
        client = KazooClient(hosts=self.where, timeout=10, **options)
        client.start(timeout=20)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        if hasattr(self, "_process"):
            self.thaw()
        for client in self._clients:
            client.stop()
            client.close()
        super().stop()

    def _command(self, port: int) -> list[str]:
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=1000\ndataDir={self.folder / 'kept'}\nadmin.enableServer=false\n"
            f"clientPort={port}\nclientPortAddress={HOST}\n"
        )
        properties = [f"-D{one}" for one in self.properties]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [JAVA, *HURRY, *properties, "-cp", CLASSES, main, str(settings)]
