from __future__ import annotations

import os
import re

import pytest
from click.testing import CliRunner, Result

from diana import Limiter
from diana.cli.main import diana
from tests.servers.cluster import Cluster
from tests.servers.ports import free_port
from tests.servers.server import Server
from tests.servers.waiting import until


def nodes(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(diana, ["nodes", *arguments], env=environment)


def test_nobody_is_there(redis7: Server) -> None:
    result = nodes(redis7.url)
    assert (result.exit_code, result.output) == (
        0,
        f"0 nodes in namespace 'diana' of {redis7.url}\n",
    )


def test_who_is_there(redis7: Server) -> None:
    limiter = Limiter("1/minute", store=f"{redis7.url}?namespace=shop", name="seen")
    until(lambda: "1 node in" in nodes(redis7.url, "--namespace", "shop").output, "it is seen")
    first, last = nodes(f"{redis7.url}?namespace=shop").output.splitlines()
    assert re.fullmatch(
        rf"[0-9a-f]{{16}}  {re.escape(os.uname().nodename)}  pid {os.getpid()}  heard of \d\.\d s ago",
        first,
    )
    assert last == f"1 node in namespace 'shop' of {redis7.url}"
    assert nodes(redis7.url).output.startswith("0 nodes in"), "that is another namespace"
    limiter.close()


def test_the_url_may_come_from_the_environment(redis7: Server) -> None:
    assert nodes(DIANA_STORE=redis7.url).output.startswith("0 nodes in namespace 'diana'")


@pytest.mark.parametrize("verb", ["nodes", "watch", "peek", "reset", "unblock", "override"])
def test_without_a_store_both_ways_to_name_it_are_said(verb: str) -> None:
    arguments = {"nodes": [], "watch": [], "override": ["plan", "bob", "--rpu", "5"]}
    result = CliRunner().invoke(
        diana, [verb, *arguments.get(verb, ["plan", "bob"])], env={"DIANA_STORE": None}
    )
    assert result.exit_code == 2
    assert "redis://localhost:6379" in result.output
    assert "DIANA_STORE" in result.output


def test_in_a_cluster_any_node_will_do_if_it_is_called_one(cluster: Cluster) -> None:
    for node in cluster.nodes:
        url = f"redis+cluster://127.0.0.1:{node.port}"
        assert nodes(url).output == f"0 nodes in namespace 'diana' of {url}\n"
    alone = [nodes(node.url) for node in cluster.nodes]
    assert sorted(result.exit_code for result in alone) == [0, 1, 1]
    (said,) = {result.output for result in alone if result.exit_code}
    assert "write redis+cluster:// instead of redis://" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:SECRET@127.0.0.1:{port}", "connection refused"),
        ("redis+cluster://:SECRET@127.0.0.1:{port}", "no node of the cluster answers"),
        ("redis+sentinel://:SECRET@127.0.0.1:{port}/m", "no sentinel knows a master 'm'"),
        ("redis://h?bugdet=1s", "'bugdet' is no option"),
        ("redis+nonsense://h", "is no store of this kind"),
    ],
)
def test_who_cannot_be_asked_is_an_error(url: str, said: str) -> None:
    result = nodes(url.format(port=free_port()))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert said in result.output
    assert "SECRET" not in result.output


def test_a_key_that_is_something_else_is_an_error(redis7: Server) -> None:
    redis7.ask("SET", "{other:nodes}", "somebody's")
    result = nodes(redis7.url, "--namespace", "other")
    assert result.exit_code == 1
    assert "WRONGTYPE" in result.output
