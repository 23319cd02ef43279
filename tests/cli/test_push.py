"""`push`, `pull`, `rollback` and `diff` against a real Redis and a file, as operators use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana import load_rules
from diana.cli.main import diana
from diana.rules.backends.redis import RedisSource
from tests.servers.ports import free_port
from tests.servers.programs import VALKEY_9
from tests.servers.server import Server
from tests.servers.web import WebServer

OLD = """\
limits:
  - url: /
    rules:
      - {name: addresses, actor: ip, unit: second, rpu: 10}
      - {name: everybody, unit: second, rpu: 500}
"""
NEW = """\
limits:
  - url: /
    except: /healthz
    rules:
      - {name: addresses, actor: ip, unit: second, rpu: 20, burst: 40, mode: shadow}
  - url: /login
    methods: POST
    rules:
      - {name: logins, actor: ip, unit: minute, rpu: 5, algo: SW}
"""
CHANGES = [
    "- /: 500/second by all, TB, local  (everybody)",
    "~ addresses: rpu 10 → 20; burst none → 40; mode enforce → shadow; except nothing → /healthz",
    "+ /login: 5/minute by ip, SW, local  (logins)",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(VALKEY_9) as server:
        yield server


@pytest.fixture(params=["redis", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for rules."""
    if request.param == "file":
        return f"file://{tmp_path}/there.yaml"
    server: Server = request.getfixturevalue("server")
    server.ask("FLUSHALL")
    return server.url


@pytest.fixture
def old(tmp_path: Path) -> str:
    (tmp_path / "old.yaml").write_text(OLD)
    return str(tmp_path / "old.yaml")


@pytest.fixture
def new(tmp_path: Path) -> str:
    (tmp_path / "new.yaml").write_text(NEW)
    return str(tmp_path / "new.yaml")


def run(*arguments: str, says: str | None = None) -> Result:
    return CliRunner().invoke(diana, arguments, input=says)


def place(url: str) -> str:
    """As prompts and reports name it."""
    return url.removeprefix("file://") if url.startswith("file:") else f"{url}, key diana:rules"


def there(url: str) -> str:
    return run("pull", url).output


def test_the_first_push_shows_every_rule_and_asks(url: str, old: str) -> None:
    result = run("push", old, url, says="y\n")
    assert result.exit_code == 0
    why, *rules, question, done = result.output.splitlines()
    assert why.startswith("nothing to compare with: ")
    assert rules == [
        "+ /: 10/second by ip, TB, local  (addresses)",
        "+ /: 500/second by all, TB, local  (everybody)",
    ]
    assert question == f"publish 2 rules at {place(url)}? [y/N]: y"
    assert done.startswith(f"published 2 rules at {place(url)}, version ")
    assert there(url) == OLD


def test_a_push_shows_what_changes_in_words(url: str, old: str, new: str) -> None:
    run("push", old, url, "--yes")
    result = run("push", new, url, "-y")
    assert result.output.splitlines()[:-1] == CHANGES
    assert there(url) == NEW


@pytest.mark.parametrize("says", ["n\n", "\n", ""])
def test_whoever_does_not_say_yes_publishes_nothing(
    url: str, old: str, new: str, says: str
) -> None:
    run("push", old, url, "--yes")
    result = run("push", new, url, says=says)
    assert result.exit_code == 1
    assert "Aborted" in result.output
    assert there(url) == OLD


def test_what_is_there_already_is_not_published_again(url: str, old: str) -> None:
    run("push", old, url, "--yes")
    result = run("push", old, url)
    assert (result.exit_code, result.output) == (0, f"{place(url)} holds these rules already\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("url: /\nrules: [{unit: second, rpu: -1}]\n", ":2:29: rules[0].rpu: '-1' is no whole"),
        ("limits: []\n", ":1:9: limits: the list is empty"),
        (f"store: redis://elsewhere\n{OLD}", ":1:1: store: store is a setting; a remote document"),
        (f"rules_from: http://x\n{OLD}", ":1:1: rules_from: rules_from is a setting"),
    ],
)
def test_a_wrong_file_publishes_nothing_and_says_why(
    url: str, old: str, tmp_path: Path, text: str, said: str
) -> None:
    run("push", old, url, "--yes")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text)
    result = run("push", str(wrong), url, "--yes")
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: nothing was published:\n{wrong}{said}")
    assert there(url) == OLD


def test_of_two_operators_the_second_is_told(
    url: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first thinks about the question, the second publishes."""
    run("push", old, url, "--yes")
    other = tmp_path / "other.yaml"
    other.write_text(OLD.replace("rpu: 10", "rpu: 11"))

    def thinks(*_: object, **__: object) -> bool:
        monkeypatch.undo()
        assert run("push", str(other), url, "--yes").exit_code == 0
        return True

    monkeypatch.setattr("click.confirm", thinks)
    result = run("push", new, url)
    assert result.exit_code == 1
    assert "has changed since it was read; run the command again" in result.output
    assert there(url) == other.read_text()


def test_rollback_publishes_what_was_replaced_and_undoes_itself(
    url: str, old: str, new: str
) -> None:
    run("push", old, url, "--yes")
    run("push", new, url, "--yes")
    result = run("rollback", url, says="y\n")
    assert "~ addresses: rpu 20 → 10;" in result.output
    assert f"publish 2 rules again at {place(url)}? [y/N]: y" in result.output
    assert f"rolled back to 2 rules at {place(url)}, version " in result.output
    assert there(url) == OLD
    assert run("rollback", url, says="n\n").exit_code == 1
    assert there(url) == OLD
    assert run("rollback", url, "--yes").output.splitlines()[:-1] == CHANGES
    assert there(url) == NEW


def test_there_is_nothing_to_go_back_to(url: str, old: str) -> None:
    run("push", old, url, "--yes")
    result = run("rollback", url, "--yes")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert there(url) == OLD


def test_what_is_no_rules_can_be_replaced(server: Server, old: str) -> None:
    server.ask("SET", "diana:rules", "nonsense")
    result = run("push", old, server.url, "--yes")
    assert result.exit_code == 0
    assert "what is there now is no valid rules document" in result.output
    assert there(server.url) == OLD


def test_pull_prints_the_document_as_it_is(server: Server) -> None:
    for text in (OLD, "no newline, no rules: ümläut"):
        server.ask("SET", "diana:rules", text)
        assert there(server.url) == text


@pytest.mark.parametrize("verb", ["pull", "rollback", "push", "watch", "diff"])
def test_whom_nobody_answers_is_told_without_the_password(verb: str, old: str) -> None:
    url = f"redis://:hunter2@127.0.0.1:{free_port()}"
    arguments = {"push": [old, url, "--yes"], "diff": [old, url]}.get(verb, [url])
    result = run(verb, *arguments)
    assert result.exit_code == 1
    assert "Error: the rules in Redis: " in result.output
    assert "hunter2" not in result.output


def test_a_url_of_nothing_known_is_told(old: str) -> None:
    result = run("push", old, "gopher://x")
    assert result.exit_code == 1
    assert "'gopher'" in result.output


def test_diff_of_files_and_urls(url: str, old: str, new: str, tmp_path: Path) -> None:
    run("push", new, url, "--yes")
    for other in (new, url):
        result = run("diff", old, other)
        assert (result.exit_code, result.output.splitlines()) == (1, CHANGES)
    same = tmp_path / "settings.yaml"
    same.write_text(f"namespace: shop\nstore: memory://\n{NEW}")
    result = run("diff", str(same), url)
    assert (result.exit_code, result.output) == (0, "no rule changes\n")


def test_diff_of_a_wrong_file_says_what_is_wrong(old: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("url: /\nrules: []\n")
    result = run("diff", old, str(tmp_path / "wrong.yaml"))
    assert result.exit_code == 1
    assert "wrong.yaml:2:8: rules: the list is empty" in result.output


def test_push_to_a_web_server_that_takes_it(old: str, new: str) -> None:
    with WebServer() as web:
        assert run("push", old, web.url, "--yes").exit_code == 0
        assert run("push", new, web.url, "--yes").exit_code == 0
        assert web.document == NEW.encode()
        assert "keeps no previous edition" in run("rollback", web.url, "--yes").output


def test_what_was_published_is_what_a_source_reads(server: Server, old: str) -> None:
    server.ask("FLUSHALL")
    run("push", old, f"{server.url}?key=shop", "--yes")
    source = RedisSource.from_url(f"{server.url}?key=shop")
    assert source.load().text == OLD.encode()
    source.close()


@pytest.mark.parametrize("verb", ["push", "rollback"])
def test_a_nodes_own_file_is_not_replaced(verb: str, new: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    text = f"namespace: shop\nResponse: {{status: 429}}\n{OLD}"
    own.write_text(text)
    (tmp_path / "own.yaml.previous").write_text(NEW)
    for where in (str(own), f"file://{own}"):
        result = run(verb, *([new] if verb == "push" else []), where, "--yes")
        assert result.exit_code == 1
        assert f"{where} holds settings (namespace, Response), so it is" in result.output
    assert own.read_text() == text


def test_the_version_is_the_one_that_verdicts_show(url: str, old: str, new: str) -> None:
    for file in (old, new):
        version = load_rules(file).version
        result = run("push", file, url, "--yes")
        assert result.output.endswith(f"published 2 rules at {place(url)}, version {version}\n")
    with WebServer() as web:
        result = run("push", new, web.url, "--yes")
        assert result.output.endswith(f"version {version} ({web.etag} there)\n")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("127.0.0.1:6379", "write redis://127.0.0.1:6379"),
        ("cache.internal:6379/0", "write redis://cache.internal:6379/0"),
        ("sentinel-1:26379/limits", "write redis+sentinel://sentinel-1:26379/limits"),
        ("config:2379/shop/rules", "write etcd://config:2379/shop/rules"),
        ("config:2181/shop/rules", "write zookeeper://config:2181/shop/rules"),
        ("me:hunter2@cache:6379", "write the whole URL, such as redis://host:6379"),
        ("new.yaml", "write file://{folder}/new.yaml for a new file"),
    ],
)
@pytest.mark.parametrize("verb", ["push", "rollback"])
def test_a_target_without_a_scheme_is_an_existing_file_or_an_error(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, target: str, said: str
) -> None:
    """A forgotten scheme once wrote a local file of that name, and said published."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = run(verb, *([old] if verb == "push" else []), target, "--yes")
    assert result.exit_code == 1
    assert said.format(folder=tmp_path / "here") in result.output
    assert "hunter2" not in result.output
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("verb", ["pull", "diff", "watch"])
def test_a_forgotten_scheme_is_told_when_reading_too(verb: str, old: str) -> None:
    result = run(verb, *([old] if verb == "diff" else []), "127.0.0.1:6379")
    assert result.exit_code == 1
    assert "write redis://127.0.0.1:6379" in result.output


def test_an_existing_file_is_a_target_by_its_path(old: str, new: str) -> None:
    result = run("push", new, old, "--yes")
    assert result.exit_code == 0
    assert f"published 2 rules at {old}, version" in result.output


def test_a_path_that_cannot_be_written_is_told(old: str) -> None:
    result = run("push", old, f"file://{old}/there.yaml", "--yes")
    assert result.exit_code == 1
    assert "cannot be written: Not a directory" in result.output
