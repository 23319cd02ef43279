"""Other gateways call the same scripts on the same counters: published, documented, and published again after a flush."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diana import Limiter
from diana.core.charge import Charge
from diana.runtime.entry_points import algorithms
from diana.stores.redis.protocol.scripts import scripts
from diana.stores.redis.store import RedisStore
from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import BEGIN_US, meter, opened

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "scripts.md"
SESSION = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
HASHES = [script.sha for script in scripts().values()]


@pytest.fixture
def store(redis7: Server) -> Iterator[RedisStore]:
    redis7.ask("FLUSHALL")
    with opened(redis7.url) as store:
        until(lambda: is_published(redis7), "scripts are published")
        yield store


def is_published(server: Server) -> bool:
    names = [f"diana:script:{name}" for name in scripts()]
    return server.ask("MGET", *names) == HASHES and all(server.ask("SCRIPT", "EXISTS", *HASHES))


def shell(server: Server, commands: str) -> str:
    """As typed at a terminal, where redis-cli shows what kind of answer it is."""
    ours = f'redis-cli() {{ command redis-cli --no-raw -p {server.port} "$@"; }}\n'
    ran = subprocess.run(
        ["bash", "-euc", ours + commands], capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_documented_session_works(store: RedisStore, redis7: Server) -> None:
    """The page's own commands, and its answers but for hashes and times."""
    limiter = Limiter("3/minute", store=store, name="logins")
    assert limiter.take("alice")
    until(lambda: redis7.ask("EXISTS", "diana:limit:diana:logins|TB|minute"), "it is known")
    for session in SESSION.findall(PAGE.read_text(encoding="utf-8")):
        typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", session, re.MULTILINE)
        shown = re.sub(r"^\$ (?:.*\\\n)*.*\n", "", session, flags=re.MULTILINE)
        assert _without_changing_numbers(shell(redis7, "\n".join(typed))) == (
            _without_changing_numbers(shown)
        )
    assert limiter.peek("alice").remaining == 2, "the reset in the session is seen here"


def test_both_see_the_same_counts(store: RedisStore, redis7: Server) -> None:
    for code in algorithms():
        some = meter("both", code, 5)
        assert all(store.decide([Charge(some, "k", 2)], BEGIN_US))
        (key,) = store.decider()._plans.keys([Charge(some, "k")])
        limit = store.decider()._plans.of(some).limit
        sha = redis7.ask("GET", "diana:script:acquire")
        words = (1, key, BEGIN_US, "", "take", 1, limit, 2)
        now, (passed, allowed, remaining, *_) = redis7.ask("EVALSHA", sha, *words)
        (seen,) = store.peek([Charge(some, "k", 0)], BEGIN_US)
        assert (now, passed, allowed) == (BEGIN_US, 1, 1)
        assert remaining == seen.remaining == some.params.limit - 4
        assert redis7.ask("EVALSHA", redis7.ask("GET", "diana:script:reset"), 1, key) == 1
        assert store.peek([Charge(some, "k", 0)], BEGIN_US)[0].remaining == some.params.limit


def test_limits_are_made_known_as_acquire_takes_them(store: RedisStore, redis7: Server) -> None:
    plans = store.decider()._plans
    meters = [meter("known {%|", code, 7) for code in algorithms()]
    for some in meters:
        store.decide([Charge(some, "k")], BEGIN_US)
    wanted = {b"diana:limit:" + plans.of(some).id: plans.of(some).limit for some in meters}
    until(lambda: redis7.ask("MGET", *wanted) == list(wanted.values()), "they are known")
    for key in wanted:
        assert 0 < redis7.ask("PTTL", key) <= 3_600_000


@pytest.mark.parametrize("limit", ["", "TB 1 2 3", '["TB"]', '["TB",[1.5]]', '["TB",[1]] '])
def test_what_is_no_limit_is_refused(store: RedisStore, redis7: Server, limit: str) -> None:
    sha = redis7.ask("GET", "diana:script:init")
    with pytest.raises(Exception, match="a limit is written"):
        redis7.ask("EVALSHA", sha, 1, "diana:limit:wrong", limit, 1_000)
    assert not redis7.ask("EXISTS", "diana:limit:wrong")


@pytest.mark.parametrize("flush", [("FLUSHALL",), ("SCRIPT", "FLUSH")], ids=" ".join)
def test_flushed_they_are_published_again(
    store: RedisStore, redis7: Server, flush: tuple[str, ...]
) -> None:
    store.decide([Charge(meter("again"), "k")])
    limit = "diana:limit:diana:again|TB|second"
    until(lambda: redis7.ask("EXISTS", limit), "the limit is known")
    redis7.ask(*flush)
    until(lambda: is_published(redis7), "scripts are published again")
    until(lambda: redis7.ask("EXISTS", limit), "the limit is known again")


def test_every_master_of_a_cluster_has_them(cluster: Cluster) -> None:
    with opened(cluster.url):
        until(lambda: _all_have_them(cluster), "they are everywhere")
        cluster.nodes[1].ask("SCRIPT", "FLUSH")
        until(lambda: _all_have_them(cluster), "they are everywhere again")
        client: Any = cluster.client()
        published = [client.get(f"diana:script:{name}") for name in scripts()]
        assert published == HASHES


def _all_have_them(cluster: Cluster) -> bool:
    return all(all(node.ask("SCRIPT", "EXISTS", *HASHES)) for node in cluster.masters())


def _without_changing_numbers(text: str) -> str:
    """Hashes are forty hex digits; times have at least eight digits. Limits are in brackets, and stay."""
    return re.sub(r"\b[0-9a-f]{40}\b|\(integer\) \d{8,}", "…", text)
