"""Which rules hold: remote before local, the last good ones before none, and what is wrong is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from diana import ConfigError, Guard
from diana.core.errors import SourceError
from diana.rules.backends.atomic_file import write_atomically
from tests.rules.documents import ANY, document, local_file, rules_threads, version
from tests.rules.patience import ANSWER_SECONDS, be_patient
from tests.servers.ports import free_port
from tests.servers.waiting import until
from tests.servers.web import Visit, WebServer

WRONG = b"url: /\nrules:\n  - {unit: day, rpu: none}\n"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.rules.backends.http.POLL_SECONDS", 0.05)
    monkeypatch.setattr("diana.rules.backends.file.POLL_SECONDS", 0.05)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer(document(7)) as web:
        yield web


@pytest.fixture
def guard(web: WebServer, tmp_path: Path) -> Iterator[Guard]:
    """Of a file with a limit of 1 whose remote rules say 7."""
    guard = Guard.from_file(local_file(tmp_path, web.url))
    yield guard
    guard.close()


def until_limit(guard: Guard, rpu: int) -> None:
    until(lambda: guard.policy.rules[0].rpu == rpu, f"the limit is {rpu}")


def write(path: Path, text: str) -> None:
    """Whole: a file that is written in place, by a thread that stands still meanwhile, is an empty one."""
    write_atomically(path, text.encode())


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "diana" and record.levelno >= logging.ERROR
    ]


def test_the_remote_rules_win_from_the_first_request_on(guard: Guard) -> None:
    verdict = guard.check(ANY)
    assert verdict.decisions[0].limit == 7
    assert verdict.version == version(document(7))
    assert guard.problems == ()


def test_a_change_is_swapped_in_and_keeps_the_count(guard: Guard, web: WebServer) -> None:
    assert guard.check(ANY).decisions[0].remaining == 6
    for rpu in (9, 8):
        web.document = document(rpu)
        until_limit(guard, rpu)
    verdict = guard.check(ANY)
    assert (verdict.decisions[0].remaining, verdict.version) == (6, version(document(8)))


def refused(visit: Visit) -> None:
    visit.answer(500, b"")


def silent(visit: Visit) -> None:
    visit.web.released.wait()


@pytest.mark.usefixtures("starts_soon")
@pytest.mark.parametrize("fault", [refused, silent])
def test_who_starts_without_the_centre_starts_soon_with_the_local_rules_and_heals(
    web: WebServer, tmp_path: Path, fault: object
) -> None:
    web.fault = fault  # type: ignore[assignment]
    begin = monotonic()
    guard = Guard.from_file(local_file(tmp_path, web.url))
    assert monotonic() - begin < ANSWER_SECONDS - 5, "it waited for an answer"
    assert guard.check(ANY).decisions[0].limit == 1
    until(lambda: guard.problems, "the problem is seen")
    web.released.set()
    web.fault = None
    until_limit(guard, 7)
    until(lambda: guard.problems == (), "all is well again")
    guard.close()


def test_a_centre_that_is_lost_later_leaves_its_last_good_rules(
    guard: Guard, web: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    web.stop()
    # A visitor who knocked just before is told first that the line was cut.
    until(lambda: "refused" in "".join(map(str, guard.problems)), "the loss is seen")
    assert [problem.where for problem in guard.problems] == ["remote"]
    assert guard.check(ANY).decisions[0].limit == 7
    web.start()
    until(lambda: guard.problems == (), "it is found again")
    assert guard.check(ANY).decisions[0].remaining == 5
    told = errors(caplog)
    assert len(set(told)) == len(told), "each is told once"
    assert "refused" in told[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WRONG, ":3:22: rules[0].rpu: 'none' is no whole number from 0"),
        (b"limits: []\n", ":1:9: limits: the list is empty"),
        (b"url: /\nrules: []\n", ":2:8: rules: the list is empty"),
        (b"", ":1:1: the document is empty"),
        (b"# nothing but a comment\n", ":1:1: the document is empty"),
        (b"limits: {\n", ":2:1: this is no YAML"),
        (b"\x00\xff\x16", ":1:2: this is not UTF-8"),
        (b"<html>502 Bad Gateway</html>", ":1:1: '<html>502 Bad Gateway</html>' where a url"),
        (b"defaults: {unit: day}\n", ":1:1: limits: there are no limits"),
        (None, ": answered 404"),
    ],
)
def test_what_is_no_rules_is_told_once_with_its_place_and_changes_nothing(
    guard: Guard,
    web: WebServer,
    caplog: pytest.LogCaptureFixture,
    text: bytes | None,
    said: str,
) -> None:
    guard.check(ANY)
    web.document = text
    until(lambda: guard.problems, "the problem is seen")
    (problem,) = guard.problems
    assert f"{web.url}{said}" in problem.message
    asked = len(web.visits)
    until(lambda: len(web.visits) > asked + 2, "it is asked again and again")
    assert errors(caplog) == [f"keeping the last good rules: {problem.message}"], "told once"
    verdict = guard.check(ANY)
    assert (verdict.decisions[0].remaining, verdict.version) == (5, version(document(7)))
    web.document = document(7)
    until(lambda: guard.problems == (), "all is well again")
    web.document = document(8)
    until_limit(guard, 8)
    assert guard.check(ANY).decisions[0].remaining == 5


@pytest.mark.parametrize(
    "setting",
    [
        "store: redis://elsewhere",
        "local_store: memory://",
        "rules_from: ${SECRET}",
        "identity: {account: ip}",
        "dashboard: on",
        "Response: {status: 200}",
        "missing: skip",
        "namespace: other",
    ],
)
def test_a_remote_document_with_settings_is_refused(
    guard: Guard, web: WebServer, setting: str
) -> None:
    web.document = f"{setting}\nlimits:\n- {{url: /, rules: [{{unit: day, rpu: 9}}]}}\n".encode()
    until(lambda: guard.problems, "the problem is seen")
    name = setting.partition(":")[0]
    assert guard.problems[0].message == (
        f"{web.url}:1:1: {name.lower()}: {name} is a setting; a remote document holds limits, defaults and shed only: "
        "put it into each node's own file"
    )
    assert guard.check(ANY).decisions[0].limit == 7


def test_a_trouble_of_the_line_does_not_hide_that_the_document_is_wrong(
    guard: Guard, web: WebServer
) -> None:
    web.document = WRONG
    until(lambda: guard.problems and ":3:22:" in guard.problems[0].message, "the mistake is told")
    web.stop()
    until(lambda: ":3:22:" not in guard.problems[0].message, "the loss is told")
    web.start()
    until(lambda: ":3:22:" in guard.problems[0].message, "the mistake is told again")


def test_the_local_file_changes_its_settings_and_not_the_remote_rules(
    guard: Guard, web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "diana.yaml"
    text = path.read_text()
    write(path, f"response: {{status: 429}}\nstore_budget: 20ms\n{text}")
    until(lambda: guard.policy.settings.answer.status == 429, "the new settings hold")
    assert guard.check(ANY).decisions[0].limit == 7
    said = "store_budget_us changed; that needs a restart"
    until(lambda: said in caplog.text, "what needs a restart is said")
    write(path, f"identity: {{account: nonsense}}\n{text}")
    until(lambda: guard.problems, "the mistake is seen")
    (problem,) = guard.problems
    assert problem.where == "file"
    assert problem.message.startswith(f"{path}:1:21: identity.account: 'nonsense' is no actor")
    assert guard.policy.settings.answer.status == 429
    write(path, text)
    until(lambda: guard.problems == (), "all is well again")
    assert guard.policy.settings.answer.status == 503


def test_a_file_alone_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(document(3))
    guard = Guard.from_file(path)
    guard.check(ANY)
    write_atomically(path, WRONG)
    until(lambda: guard.problems, "the mistake is seen")
    path.unlink()
    until(lambda: "cannot be read" in guard.problems[0].message, "the loss is seen")
    assert guard.check(ANY).decisions[0].remaining == 1
    write_atomically(path, document(4))
    until_limit(guard, 4)
    until(lambda: guard.problems == (), "all is well again")
    assert guard.check(ANY).decisions[0].remaining == 1
    guard.close()


def test_a_url_alone_has_nothing_to_fall_back_on(web: WebServer) -> None:
    guard = Guard.from_file(web.url)
    assert guard.check(ANY).decisions[0].limit == 7
    guard.close()
    with pytest.raises(SourceError, match="refused"):
        Guard.from_file(f"http://127.0.0.1:{free_port()}/")
    web.document = WRONG
    with pytest.raises(ConfigError, match=":3:22:"):
        Guard.from_file(web.url)


def test_the_defaults_of_the_local_file_are_for_its_own_rules(
    web: WebServer, tmp_path: Path
) -> None:
    path = local_file(tmp_path, web.url)
    path.write_text(f"defaults: {{mode: shadow, missing: deny}}\n{path.read_text()}")
    guard = Guard.from_file(path)
    (rule,) = guard.policy.rules
    assert (rule.rpu, rule.mode, rule.missing) == (7, "enforce", "ip")
    guard.close()


def test_what_needs_a_restart_stays_as_it_was_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write_limit(settings: str, rpu: int) -> None:
        limits = f"limits: [{{url: /, rules: [{{name: day, unit: day, rpu: {rpu}, algo: W, align: first}}]}}]"
        write(path, f"{settings}\n{limits}\n")
        if rpu > 2:
            until_limit(guard, rpu)

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if "restart" in one.getMessage()]

    path = tmp_path / "diana.yaml"
    write_limit("namespace: a", 2)
    guard = Guard.from_file(path)
    counter = guard.policy.rules[0].meter.id
    assert [bool(guard.check(ANY)) for _ in range(3)] == [True, True, False]
    write_limit("namespace: b", 3)
    assert guard.policy.rules[0].meter.id == counter
    assert [bool(guard.check(ANY)) for _ in range(2)] == [True, False], "what was counted counts"
    write_limit("namespace: b", 4)
    assert told() == ["namespace changed; that needs a restart"]
    write_limit("namespace: a", 5)
    assert len(told()) == 1, "all is as it was at the start"
    write_limit("namespace: a\nfilters: [access: {deny: 203.0.113.0/24}]", 6)
    write_limit("namespace: a\nfilters: [access: {deny: 203.0.113.0/24}]", 7)
    assert told()[1:] == ["filters changed; that needs a restart"]
    guard.close()


def test_a_start_that_fails_leaves_nothing_behind(web: WebServer, tmp_path: Path) -> None:
    before = set(rules_threads())  # one of an earlier test may be about to end
    path = local_file(tmp_path, web.url)
    with pytest.raises(ConfigError):
        Guard.from_file(path, store="bogus://x")
    until(lambda: set(rules_threads()) <= before, "no thread is left")


@pytest.mark.usefixtures("starts_soon")
def test_a_start_by_url_does_not_wait_as_long_as_the_source_would(web: WebServer) -> None:
    web.fault = silent
    begin = monotonic()
    with pytest.raises(SourceError, match=f"{web.url}: no answer within 1 s"):
        Guard.from_file(web.url)
    assert monotonic() - begin < ANSWER_SECONDS


@pytest.mark.usefixtures("starts_soon")
def test_a_centre_that_is_waited_for_is_a_trouble_and_no_complaint(
    web: WebServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web.fault = silent
    guard = Guard.from_file(local_file(tmp_path, web.url))
    assert [problem.where for problem in guard.problems] == ["remote"]
    guard.close()
    web.released.set()
    web.fault = None
    caplog.clear()
    be_patient(monkeypatch)
    quick = Guard.from_file(local_file(tmp_path, web.url))
    assert quick.problems == ()
    assert "rules source recovered" not in caplog.text
    quick.close()
