"""Rules from a web server: asked politely, believed carefully."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest

from diana import ConfigError
from diana.core.contracts import Revision
from diana.core.errors import SourceError
from diana.rules.backends.http import HttpSource
from tests.rules.documents import document
from tests.servers.waiting import until
from tests.servers.web import PATH, Fault, Visit, WebServer


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer(document(1)) as web:
        yield web


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diana.rules.backends.http.POLL_SECONDS", 0.02)


def changes(source: HttpSource, known: Revision) -> Iterator[Revision]:
    """Closed with the test."""
    try:
        yield from source.watch(known)
    finally:
        source.close()


def test_a_document_that_did_not_change_is_not_sent_again(web: WebServer) -> None:
    source = HttpSource(web.url)
    known = source.load()
    assert known == (document(1), web.etag)
    following = changes(source, known)

    def change_later() -> None:
        until(lambda: len(web.visits) > 3, "it is asked again and again")
        web.document = document(2)

    thread = Thread(target=change_later)
    thread.start()
    assert next(following).text == document(2)
    thread.join()
    first, *later = [headers.get("If-None-Match") for _, _, headers in web.visits]
    assert first is None
    assert set(later) == {known.version}


def test_a_server_without_etags_is_followed_by_what_it_says(web: WebServer) -> None:
    web.with_etag = False
    source = HttpSource(web.url)
    following = changes(source, source.load())
    for rpu in (2, 3):
        web.document = document(rpu)
        assert next(following).text == document(rpu)


@pytest.mark.parametrize(
    ("says", "pause"),
    [
        ("max-age=7", 7),
        ("public, Max-Age=30, must-revalidate", 30),
        ("max-age=86400", 60),
        ("max-age=0", 0.02),
        ("no-store", 0.02),
    ],
)
def test_cache_control_says_when_to_ask_again(web: WebServer, says: str, pause: float) -> None:
    web.headers = {"Cache_Control": says}
    source = HttpSource(web.url)
    source.load()
    assert source._poll_again == pause


def test_the_authorization_comes_from_the_environment(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    HttpSource(web.url).load()
    monkeypatch.setenv("DIANA_RULES_AUTHORIZATION", "Bearer very-secret")
    HttpSource(web.url).load()
    assert [headers.get("Authorization") for _, _, headers in web.visits] == [
        None,
        "Bearer very-secret",
    ]


def redirecting_to(target: str) -> Fault:
    def fault(visit: Visit) -> None:
        if visit.path == "/there":
            visit.answer(200, document(9))
        else:
            visit.answer(302, b"", Location=target)

    return fault


def test_a_redirect_on_the_same_host_is_followed(web: WebServer) -> None:
    for target in ("/there", web.url.replace(PATH, "/there")):
        web.fault = redirecting_to(target)
        assert HttpSource(web.url).load().text == document(9)


def test_a_redirect_elsewhere_is_not(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIANA_RULES_AUTHORIZATION", "Bearer very-secret")
    with WebServer(document(6)) as other:
        for target in (other.url, web.url.replace("http://", "https://")):
            web.fault = redirecting_to(target)
            with pytest.raises(SourceError, match="redirects to another host"):
                HttpSource(web.url).load()
        assert other.visits == []


def test_a_redirect_in_a_circle_ends(web: WebServer) -> None:
    web.fault = redirecting_to(PATH)
    with pytest.raises(SourceError, match="too many redirects"):
        HttpSource(web.url).load()


def ten_megabytes(visit: Visit) -> None:
    visit.answer(200, b"#" * 10_000_000)


def endless(visit: Visit) -> None:
    visit.send_response(200)
    visit.end_headers()
    while not visit.web.released.is_set():
        visit.wfile.write(b"#" * 10_000)


def broken(visit: Visit) -> None:
    visit.send_response(200)
    visit.send_header("Content-Length", "1000")
    visit.end_headers()
    visit.wfile.write(document(5))


def broken_chunks(visit: Visit) -> None:
    visit.protocol_version = "HTTP/1.1"
    visit.send_response(200)
    visit.send_header("Transfer-Encoding", "chunked")
    visit.end_headers()
    visit.wfile.write(b"400\r\n" + document(5))


def garbage(visit: Visit) -> None:
    visit.wfile.write(b"\x00\xff\x16\x03 this is no HTTP\r\n\r\n")


def silence(visit: Visit) -> None:
    visit.web.released.wait()


def dripping_body(visit: Visit) -> None:
    visit.send_response(200)
    visit.send_header("Content-Length", "1000")
    visit.end_headers()
    while not visit.web.released.wait(0.05):
        visit.wfile.write(b"#")


def dripping_headers(visit: Visit) -> None:
    visit.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
    while not visit.web.released.wait(0.05):
        visit.wfile.write(b"#")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ten_megabytes, "more than 1,048,576 bytes"),
        (endless, "more than 1,048,576 bytes"),
        (broken, "the answer broke off"),
        (broken_chunks, "the answer broke off"),
        (garbage, "this is no HTTP"),
        (silence, "no complete answer within 2 s"),
        (dripping_body, "no complete answer within 2 s"),
        (dripping_headers, "no complete answer within 2 s"),
        (lambda visit: visit.answer(404, b""), "answered 404"),
        (lambda visit: visit.answer(500, document(5)), "answered 500"),
        (lambda visit: visit.answer(204, b""), "answered 204"),
    ],
)
def test_a_bad_answer_is_an_error_soon(
    web: WebServer, fault: Fault, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HttpSource(f"{web.url}?token=secret")
    known = source.load()
    web.fault = fault
    if "2 s" in said:
        monkeypatch.setattr("diana.rules.backends.http.TIMEOUT_SECONDS", 2.0)
    for ask in (source.load, lambda: next(changes(source, known))):
        with pytest.raises(SourceError, match=said) as caught:
            ask()
        assert str(caught.value).startswith(web.url)
        assert "secret" not in str(caught.value)


def test_a_server_that_is_gone_is_an_error_until_it_is_back(web: WebServer) -> None:
    source = HttpSource(web.url)
    source.load()
    web.stop()
    with pytest.raises(SourceError, match="refused"):
        source.load()
    web.start()
    assert source.load().text == document(1)


def test_writing_by_put_on_condition(web: WebServer) -> None:
    source = HttpSource(web.url)
    seen = source.load()
    assert source.publish(document(2), seen).text == document(2)
    for stale in (seen, None):
        with pytest.raises(SourceError, match="has changed since it was read"):
            source.publish(document(3), stale)
    assert web.document == document(2)
    web.document = None
    assert HttpSource(web.url).publish(document(4), None).text == document(4)


def test_without_an_etag_nobody_can_tell_who_was_faster(web: WebServer) -> None:
    web.with_etag = False
    source = HttpSource(web.url)
    with pytest.raises(SourceError, match="sends no ETag"):
        source.publish(document(2), source.load())
    assert web.document == document(1)


def test_a_web_server_has_no_previous_edition(web: WebServer) -> None:
    with pytest.raises(SourceError, match="keeps no previous edition"):
        HttpSource(web.url).previous()


@pytest.mark.parametrize(
    "url",
    ["http://", "http://me:secret@host/", "http://host:1secret/", "http://a b/", "http://hö/"],
)
def test_a_wrong_url_is_told_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpSource(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["Bearer very-secret\n", " Bearer very-secret\r\n"])
def test_an_authorization_that_was_read_from_a_file_may_end_with_a_line(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("DIANA_RULES_AUTHORIZATION", value)
    HttpSource(web.url).load()
    assert web.visits[0][2]["Authorization"] == "Bearer very-secret"


@pytest.mark.parametrize("value", ["Bearer very-\nsecret", "Bearer\x07 secret", "Bearer secr€t"])
def test_an_authorization_that_is_no_header_is_told_without_it(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("DIANA_RULES_AUTHORIZATION", value)
    with pytest.raises(SourceError, match="DIANA_RULES_AUTHORIZATION holds a sign") as caught:
        HttpSource(web.url).load()
    assert "secr" not in str(caught.value)
    assert web.visits == []


@pytest.mark.parametrize("target", ["http://[secret", "http://host:secret/", "/a secret", "/\xe9"])
def test_a_redirect_to_what_is_no_url_is_an_error(web: WebServer, target: str) -> None:
    web.fault = redirecting_to(target)
    with pytest.raises(SourceError, match="redirects to an invalid URL") as caught:
        HttpSource(web.url).load()
    assert "secret" not in str(caught.value)


def without_length(visit: Visit) -> None:
    visit.send_response(200)
    visit.end_headers()
    visit.wfile.write(document(5))


def in_chunks(visit: Visit) -> None:
    visit.protocol_version = "HTTP/1.1"
    visit.send_response(200)
    visit.send_header("Transfer-Encoding", "chunked")
    visit.end_headers()
    visit.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(document(5)), document(5)))


def test_an_answer_that_may_be_half_of_it_is_not_believed(web: WebServer) -> None:
    web.fault = in_chunks
    assert HttpSource(web.url).load().text == document(5)
    web.fault = without_length
    with pytest.raises(SourceError, match="neither Content-Length nor chunks"):
        HttpSource(web.url).load()
