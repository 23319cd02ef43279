"""`shed:` in a rules file: what may be written, and what is told of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from diana import ConfigError, Guard, Policy, Request
from diana.core.shed_settings import Level
from diana.rules.document.difference import shed_difference
from diana.rules.loading import rules_from_bytes, rules_from_remote
from tests.servers.waiting import until

LIMITS = "limits: [{url: /, rules: [{unit: hour, rpu: 9}]}]"
FACTORS = "cpu, inflight, loop_lag, memory, process_memory, redis_length"


def told(shed: str) -> list[tuple[int | None, int | None, str | None, str]]:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(f"{shed}\n{LIMITS}".encode(), environ={})
    return [(e.line, e.column, e.path, e.message) for e in caught.value.errors]


def test_default_is_four_factors_with_their_levels_and_without_health_checks() -> None:
    lines = rules_from_bytes(f"shed: default\n{LIMITS}".encode()).settings.shed
    assert [(line.name, line.levels) for line in lines] == [
        ("cpu", (Level(80, 10), Level(90, 30), Level(95, 70))),
        ("memory", (Level(90, 10), Level(95, 30), Level(98, 70))),
        ("process_memory", (Level(80, 10), Level(90, 30), Level(95, 70))),
        ("loop_lag", (Level(100, 10), Level(250, 30), Level(1_000, 70))),
    ]
    for line in lines:
        assert [url.spelling for url in line.exempt] == ["/healthz", "/livez", "/readyz"]
        assert line.last is None


def test_a_list_says_it_all() -> None:
    text = """
Shed:
  - Factor: CPU
    levels: [{Above: 50, reject: 100}]
    except: /healthz
    last: {header X-Priority: [high, higher], ip: 10.0.0.0/8}
  - {factor: redis_length, url: "redis://${QUEUE}", key: jobs, levels: {above: 7, reject: 1}}
  - {factor: redis_length, url: "redis://${QUEUE}", key: mails, levels: {above: 7, reject: 1}}
"""
    cpu, jobs, _ = rules_from_bytes(
        f"{text}{LIMITS}".encode(), environ={"QUEUE": "queue:6379"}
    ).settings.shed
    assert (cpu.name, cpu.levels) == ("cpu", (Level(50, 100),))
    assert cpu.last is not None
    assert [entry.spelling for entry in cpu.last.entries] == ["header x-priority", "ip"]
    assert jobs.options == {"url": "redis://queue:6379", "key": "jobs"}


@pytest.mark.parametrize(
    ("shed", "line", "column", "path", "said"),
    [
        ("shed: on", 1, 7, "shed", "shed is a list; write each factor behind a dash (-), or default"),
        ("shed: []", 1, 7, "shed", "the list is empty; write at least one factor, or remove the field"),
        ("shed: [cpu]", 1, 8, "shed[0]", "'cpu' where a factor should be; write its fields as name: value"),
        ("shed: [{levels: [{above: 1, reject: 1}]}]", 1, 8, "shed[0]", f"there is no factor; write factor: and one of {FACTORS}"),
        ("shed: [{factor: cup}]", 1, 17, "shed[0].factor", "'cup' is no factor; did you mean cpu?"),
        ("shed: [{factor: heat}]", 1, 17, "shed[0].factor", f"'heat' is no factor; there is {FACTORS}"),
        ("shed: [{factor: cpu, level: 5}]", 1, 22, "shed[0].level", "'level' is no field here; did you mean levels?"),
        ("shed: [{factor: cpu, url: x}]", 1, 22, "shed[0].url", "'url' is no field here; there is factor, levels, except, last"),
        ("shed: [{factor: cpu, levels: []}]", 1, 30, "shed[0].levels",
         "the list is empty; write at least one level, or remove the field"),
        ("shed: [{factor: cpu, levels: [80]}]", 1, 31, "shed[0].levels[0]",
         "'80' where a level should be; write its fields as name: value"),
        ("shed: [{factor: cpu, levels: [{above: 80}]}]", 1, 31, "shed[0].levels[0]",
         "there is no reject in this level; write {above: 80, reject: 10}"),
        ("shed: [{factor: cpu, levels: [{above: 80, rejects: 5}]}]", 1, 43, "shed[0].levels[0]",
         "'rejects' is no field of a level; write {above: 80, reject: 10}"),
        ("shed: [{factor: cpu, levels: [{above: 80, Above: 5}]}]", 1, 43, "shed[0].levels[0]",
         "'Above' stands here twice; keep one; write {above: 80, reject: 10}"),
        ("shed: [{factor: cpu, levels: [{above: 80, reject: 10%}]}]", 1, 51, "shed[0].levels[0].reject",
         "'10%': reject is in percent; write 10"),
        ("shed: [{factor: cpu, levels: [{above: 80, reject: 101}]}]", 1, 51, "shed[0].levels[0].reject",
         "'101' is too large; write at most 100"),
        ("shed: [{factor: cpu, levels: [{above: 80, reject: 0}]}]", 1, 51, "shed[0].levels[0].reject",
         "'0' is no whole number from 1; write digits such as 10"),
        ("shed: [{factor: cpu, levels: [{above: 79.5, reject: 1}]}]", 1, 39, "shed[0].levels[0].above",
         "'79.5' is no whole number from 1; write digits such as 10"),
        ("shed: [{factor: cpu, levels: [{above: 100, reject: 1}]}]", 1, 31, "shed[0].levels[0]",
         "above 100 is never reached: it is a percentage; write less than 100"),
        ("shed: [{factor: cpu, levels: [{above: 80, reject: 1}, {above: 80, reject: 2}]}]", 1, 55, "shed[0].levels[1]",
         "above 80 stands behind above 80; write levels in ascending order"),
        ("shed: [{factor: cpu, levels: [{above: 80, reject: 9}, {above: 90, reject: 2}]}]", 1, 55, "shed[0].levels[1]",
         "above 90 rejects less than above 80; write at least 9"),
        ("shed: [{factor: inflight}]", 1, 8, "shed[0]",
         "there are no levels, and inflight has no usual ones; write levels: [{above: 100, reject: 10}]"),
        ("shed: [{factor: cpu, except: [healthz]}]", 1, 31, "shed[0].except[0]",
         "the url 'healthz' does not start with /; write /healthz"),
        ("shed: [{factor: cpu, last: {}}]", 1, 28, "shed[0].last",
         "the list is empty; write at least one actor, or remove the field"),
        ("shed: [{factor: cpu, last: {segment shop: [a]}}]", 1, 29, "shed[0].last.'segment shop'",
         "the url / captures nothing; write {shop} into it, or name one it captures"),
        ("shed:\n  - factor: cpu\n  - factor: CPU", 3, 5, "shed[1]", "cpu stands here twice; keep one, with all its levels"),
        ("shed: [{factor: redis_length, key: jobs, levels: [{above: 1, reject: 1}]}]", 1, 8, "shed[0]",
         "there is no url; write url: such as redis://localhost:6379"),
        ("shed: [{factor: redis_length, key: jobs, url: redis://h/x, levels: [{above: 1, reject: 1}]}]", 1, 47, "shed[0].url",
         "behind the host stands the number of a database, such as /0"),
        ("shed: [{factor: redis_length, key: jobs, url: '${NO}', levels: [{above: 1, reject: 1}]}]", 1, 47, "shed[0].url",
         "${NO} is not set in the environment; set it, or write the value"),
    ],
)  # fmt: skip
def test_mistakes(shed: str, line: int, column: int, path: str, said: str) -> None:
    assert told(shed) == [(line, column, path, said)]


def test_health_checks_that_are_shed_are_a_warning_once() -> None:
    def warnings(shed: str) -> list[tuple[int, str]]:
        policy = rules_from_bytes(f"{shed}\n{LIMITS}".encode())
        return [(warning.position.line, warning.message) for warning in policy.warnings]

    assert warnings("shed: default") == []
    assert warnings("shed: [{factor: cpu, except: [/healthz]}]") == []
    said = (
        "memory sheds health checks too, and a machine whose checks fail is taken away under load; "
        "write except: [/healthz]"
    )
    lines = ["shed:", "- {factor: cpu, except: [/a]}", "- factor: memory", "- factor: loop_lag"]
    assert warnings("\n".join(lines)) == [(3, said)]


def test_a_remote_document_may_hold_shed_and_wins_over_the_local_one() -> None:
    local = f"mounts: [/api]\nshed: [{{factor: memory}}]\n{LIMITS}".encode()
    kept = rules_from_remote(LIMITS.encode(), local=local)
    assert [line.name for line in kept.settings.shed] == ["memory"]
    won = rules_from_remote(f"shed: [{{factor: cpu}}]\n{LIMITS}".encode(), local=local)
    assert [line.name for line in won.settings.shed] == ["cpu"]
    assert won.settings.mounts == (("api",),)


def test_a_remote_document_tells_no_node_whom_to_ask() -> None:
    shed = (
        "shed: [{factor: redis_length, url: redis://evil, key: k, levels: [{above: 1, reject: 1}]}]"
    )
    with pytest.raises(ConfigError) as caught:
        rules_from_remote(f"{shed}\n{LIMITS}".encode())
    assert caught.value.errors[0].message == (
        "a remote document cannot tell nodes which server to ask; put shed into each node's own file"
    )
    with pytest.raises(ConfigError, match="cannot read"):
        rules_from_remote(
            f"shed: [{{factor: cpu, last: {{header X: '${{HOME}}'}}}}]\n{LIMITS}".encode()
        )


def test_a_file_changes_what_is_shed_live(tmp_path: Path) -> None:
    rules = tmp_path / "diana.yaml"
    rules.write_text(LIMITS)
    guard = Guard.from_file(rules)
    assert guard.check(Request())
    assert guard.factors == []

    def change(level: str) -> None:
        new = rules.with_suffix(".new")
        new.write_text(f"shed: [{{factor: memory, levels: [{level}]}}]\n{LIMITS}")
        new.replace(rules)

    change("{above: 1, reject: 100}")
    until(lambda: guard.check(Request()).shed, "some memory is used, and so all is rejected")
    change("{above: 99, reject: 100}")
    until(lambda: not guard.check(Request()).shed, "that level is not reached")
    guard.close()


def test_what_another_document_would_change_is_told() -> None:
    def of(shed: str) -> Policy:
        return rules_from_bytes(f"{shed}\n{LIMITS}".encode())

    queue = (
        "{factor: redis_length, url: 'redis://:secret@h', key: k, levels: [{above: 5, reject: 9}]}"
    )
    old, new = (
        of("shed: [{factor: cpu, except: [/a]}, {factor: memory}]"),
        of(f"shed: [{{factor: cpu, except: [/b], last: {{ip: 10.0.0.1}}}}, {queue}]"),
    )
    told = list(map(str, shed_difference(old, new)))
    cpu = "10 % from 80, 30 % from 90, 70 % from 95"
    assert told[:2] == [
        f"~ shed cpu: {cpu}, except /a → {cpu}, except /b, last ip (10.0.0.1/32)",
        "- shed memory: 10 % from 90, 30 % from 95, 70 % from 98",
    ]
    assert told[2].startswith("+ shed redis_length: 9 % from 5, options (")
    assert "secret" not in told[2]
    assert (
        shed_difference(
            new, of(f"shed: [{{factor: cpu, except: [/b], last: {{ip: 10.0.0.1}}}}, {queue}]")
        )
        == []
    )
