"""Access: web origins, host names and API keys."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from serving import PAIR, client_of, failed
from starlette.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from nmt_cli.serving.keys import read_keys
from nmt_cli.serving.origins import Access, access_for
from nmt_cli.system.errors import DataError, UsageError

TEXT = {"q": "", **PAIR}
GLOSSARY = {"name": "n", "source_lang": "EN", "target_lang": "DE", "entries": "rot\tBaum", "entries_format": "tsv"}
LOCAL = access_for("127.0.0.1", [], [])
EXTENSION = "moz-extension://5f3f1d5c-0a0b-4e9e-9d39-2f1f8a9b1c11"


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[TestClient]:
    with client_of(model, access=LOCAL) as client:
        client.base_url = "http://127.0.0.1:5000"
        yield client


def status(client: TestClient, path: str = "/health", method: str = "GET", **headers: str) -> int:
    return client.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    ).status_code


OURS = ["localhost", "LOCALHOST:5000", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:5000"]
FOREIGN = ["evil.example", "evil.example:5000", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost"]
FOREIGN += [
    "192.168.1.1",
    "8.8.8.8:5000",
    "[2001:db8::1]",
    "0.0.0.0",
    "",
    "localhost@evil.example",
    "evil.example#localhost",
]
FOREIGN += [
    "localhost:80@evil.example",
    "evil.example/localhost",
    "localhost:x",
    "localhost evil.example",
    "[::1",
    "127.1",
]
FOREIGN += ["localhost,evil.example", "xn--localhost", "local host", "2130706433"]


@pytest.mark.parametrize("host", OURS)
def test_local_host_names_are_accepted(client: TestClient, host: str) -> None:
    assert status(client, Host=host) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_host_names_are_refused(client: TestClient, host: str) -> None:
    """DNS rebinding makes the host name of a foreign page resolve to this machine."""
    for method, path in (("GET", "/v2/glossaries"), ("POST", "/translate"), ("GET", "/metrics"), ("GET", "/")):
        answer = client.request(method, path, headers={"Host": host})
        assert answer.status_code == 421
        [message] = answer.json().values()
        assert "is not a name of this server" in message
        assert "\n" not in message


def test_every_host_header_is_checked(client: TestClient) -> None:
    answer = client.get("/health", headers=[("Host", "localhost"), ("Host", "evil.example")])
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("host", "names", "allowed", "refused"),
    [
        (
            "127.0.0.1",
            ["translate.example"],
            ["translate.example", "Translate.Example:443"],
            ["example", "a.translate.example"],
        ),
        ("127.0.0.1", ["*"], ["evil.example"], ["evil.example#", "a b"]),
        ("127.0.0.1", ["192.168.1.1"], ["192.168.1.1:5000"], ["192.168.1.2"]),
        ("192.168.1.1", [], ["192.168.1.1", "localhost"], ["192.168.1.2", "evil.example"]),
        ("0.0.0.0", [], ["192.168.1.1:5000", "[2001:db8::1]", "0.0.0.0"], ["evil.example"]),
        ("::", [], ["192.168.1.1", "[::]:5000"], ["evil.example"]),
        ("fe80::1", [], ["[fe80::1]:5000"], ["[fe80::2]"]),
        ("server.lan", [], ["server.lan", "SERVER.lan:5000"], ["other.lan", "10.0.0.1"]),
        ("localhost", ["Name."], ["name", "name.:1"], ["names"]),
    ],
)
def test_host_names_follow_options_and_address(
    host: str, names: list[str], allowed: list[str], refused: list[str]
) -> None:
    rule = access_for(host, names, [])
    assert [each for each in allowed if not rule.has_host(each)] == []
    assert [each for each in refused if rule.has_host(each)] == []


@pytest.mark.parametrize("name", ["https://example.org", "example.org:443", "a b", "", "*.example.org", "a/b", "a\nb"])
def test_a_malformed_host_name_is_refused(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"^--allow-host .* is not a host name\. Use a name such as example\.org without a port$"
    ):
        access_for("127.0.0.1", [name], [])


ORIGINS = ["http://example.org", "https://example.org:8443", "http://[::1]:3000", "http://localhost:3000", EXTENSION]
ORIGINS += ["chrome-extension://abcdefghijklmnop", "*"]
NO_ORIGINS = [
    "null",
    "example.org",
    "https://example.org/",
    "https://*.example.org",
    "https://a@b",
    "https://",
    "http//a",
]
NO_ORIGINS += [
    "https://a b",
    "https://a,https://b",
    "",
    "https://example.org\n",
    "https://a:b",
    "file://",
    "javascript:1",
]


def test_origins_are_validated() -> None:
    assert access_for("127.0.0.1", [], ORIGINS).origins == tuple(ORIGINS)
    assert access_for("127.0.0.1", [], ["HTTPS://Example.Org"]).origins == ("https://example.org",)
    for text in NO_ORIGINS:
        with pytest.raises(UsageError, match=r"^--cors .*is not an origin\. Use an origin such as https://"):
            access_for("127.0.0.1", [], [text])


def test_a_malformed_origin_or_host_ends_the_command(model: Path) -> None:
    for option, text in (("--cors", "null"), ("--cors", "z"), ("--allow-host", "http://z")):
        code, line = failed(str(model), "--port", "0", option, text)
        assert (code, option in line) == (2, True)


def ask(client: TestClient, origin: str, host: str = "127.0.0.1:5000") -> list[int]:
    """Return the statuses of requests that a page can send without a preflight, and of a deletion."""
    headers = {"Origin": origin, "Host": host}
    form = {"source_lang": "EN", "target_lang": "DE", "text": ""}
    answers = [
        client.post("/translate", data=TEXT, headers=headers),
        client.post("/v2/translate", data=form, headers=headers),
        client.post("/v2/glossaries", data=GLOSSARY, headers=headers),
        client.post("/translate", content=b"{}", headers={**headers, "Content-Type": "text/plain"}),
        client.delete("/v2/glossaries/x", headers=headers),
    ]
    return [answer.status_code for answer in answers]


PASSED = [200, 200, 201, 400, 404]


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        EXTENSION,
        "http://127.0.0.1:5001",
        "http://127.0.0.1",
        "http://localhost:5000",
        "",
    ],
)
def test_pages_of_other_origins_are_refused(client: TestClient, origin: str) -> None:
    assert ask(client, origin) == [403] * 5
    for path in ("/v2/glossaries", "/languages", "/metrics"):
        answer = client.get(path, headers={"Origin": origin})
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    refused = client.post("/translate", data=TEXT, headers={"Origin": origin})
    advice = ". To allow them, start nmt serve with --cors" if "://" in origin else ""
    assert f"may not use this server{advice}" in refused.json()["error"]
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = client.options("/translate", headers=preflight)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:5000", "127.0.0.1:5000"),
        ("http://localhost:5000", "localhost:5000"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("https://localhost", "localhost"),
        ("https://localhost", "localhost:443"),
        ("http://[::1]:5000", "[::1]:5000"),
        ("http://LocalHost:5000", "localhost:5000"),
    ],
)
def test_the_servers_own_page_is_accepted(client: TestClient, origin: str, host: str) -> None:
    assert ask(client, origin, host) == PASSED


def test_clients_without_an_origin_are_accepted(client: TestClient) -> None:
    assert client.post("/translate", json=TEXT).status_code == 200


def test_allowed_origins_can_send_and_read(model: Path) -> None:
    rule = access_for("127.0.0.1", [], ["https://one.example", EXTENSION])
    with client_of(model, access=rule) as client:
        client.base_url = "http://127.0.0.1:5000"
        for origin in ("https://one.example", EXTENSION):
            assert ask(client, origin) == PASSED
            headers = client.get("/languages", headers={"Origin": origin}).headers
            assert headers["Access-Control-Allow-Origin"] == origin
            assert "Origin" in headers["Vary"]
        for origin in ("https://two.example", "http://one.example", "https://one.example:444", "null"):
            assert ask(client, origin) == [403] * 5
            assert "Access-Control-Allow-Origin" not in client.get("/languages", headers={"Origin": origin}).headers


def test_a_star_allows_every_origin(model: Path) -> None:
    with client_of(model, access=access_for("127.0.0.1", [], ["*"])) as client:
        client.base_url = "http://127.0.0.1:5000"
        assert ask(client, "https://evil.example") == PASSED
        answer = client.get("/languages", headers={"Origin": "https://evil.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_private_network_preflights_follow_the_origin(model: Path) -> None:
    """Browsers send them when a public page uses a server in the local network."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    for origins in (["*"], ["https://one.example"]):
        with client_of(model, access=access_for("127.0.0.1", [], origins)) as client:
            client.base_url = "http://127.0.0.1:5000"
            answer = client.options("/translate", headers={**asked, "Origin": "https://one.example"})
            assert answer.status_code == 200
            assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
            assert answer.headers["Access-Control-Allow-Origin"] in ("*", "https://one.example")
    answer = client.options("/translate", headers={**asked, "Origin": "https://two.example"})
    assert answer.status_code == 400
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_with_keys_the_key_decides(model: Path) -> None:
    with client_of(model, access=LOCAL, keys=[b"one"]) as client:
        client.base_url = "http://127.0.0.1:5000"
        headers = {"Origin": "https://evil.example"}
        assert client.post("/translate", data={**TEXT, "api_key": "one"}, headers=headers).status_code == 200
        answer = client.post("/translate", data=TEXT, headers=headers)
        assert answer.status_code == 400
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert status(client, Host="evil.example") == 421
        assert status(client, "/metrics") == 400
        assert status(client, "/metrics", Authorization="Bearer one") == 200


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({}, "http://127.0.0.1:5000"),
        ({"Host": "localhost:7"}, "http://localhost:7"),
        ({"Host": "[::1]:7"}, "http://[::1]:7"),
        ({"X-Forwarded-Host": "evil.example"}, "http://127.0.0.1:5000"),
        ({"Forwarded": "host=evil.example;proto=https"}, "http://127.0.0.1:5000"),
        ({"X-Forwarded-Proto": "https"}, "https://127.0.0.1:5000"),
        ({"X-Forwarded-Proto": "javascript"}, "http://127.0.0.1:5000"),
    ],
)
def test_file_urls_are_absolute_and_use_our_host(model: Path, headers: dict[str, str], base: str) -> None:
    """LibreTranslate's clients use the URL unchanged. Of a local proxy's headers, only the scheme is used."""
    with client_of(model, access=LOCAL) as inner:
        app = ProxyHeadersMiddleware(inner.app, trusted_hosts="127.0.0.1")
        client = TestClient(app, base_url="http://127.0.0.1:5000", client=("127.0.0.1", 1))
        answer = client.post("/translate_file", data=PAIR, files={"file": ("a.txt", "")}, headers=headers)
        url = answer.json()["translatedFileUrl"]
        assert re.fullmatch(re.escape(base) + r"/download_file/[\w-]{22}\.translated\.txt", url)
        assert client.get(url).status_code == 200
        other = TestClient(app, base_url="http://127.0.0.1:5000", client=("10.0.0.1", 1))
        answer = other.post("/translate_file", data=PAIR, files={"file": ("a.txt", "")}, headers=headers)
        assert not answer.json()["translatedFileUrl"].startswith("https")


def test_a_server_names_the_option_that_allows_a_host_or_origin(model: Path) -> None:
    access = access_for("127.0.0.1", ["translate.example"], ["https://one.example"])
    with client_of(model, access=access) as client:
        client.base_url = "http://127.0.0.1:5000"

        def asked(**headers: str) -> tuple[int, str]:
            answer = client.post("/detect", data={"q": ""}, headers=headers)
            return answer.status_code, answer.text

        assert asked()[0] == asked(Host="translate.example")[0] == asked(Origin="https://one.example")[0] == 200
        for host in ("evil.example", "evil.example:8000"):
            code, message = asked(Host=host)
            assert code == 421
            assert message.endswith('with --allow-host evil.example"}'), "without the port, which the option refuses"
        code, message = asked(Origin="https://evil.example")
        assert (code, "--cors https://evil.example" in message) == (403, True)


LONG_KEY = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"# for Weblate\n" + LONG_KEY + b"\n", [LONG_KEY]),
        (b"\xef\xbb\xbf" + LONG_KEY + b"\r\n", [LONG_KEY]),
        (b"\xef\xbb\xbf# one\r\n  #two\r\n\r\n\t" + LONG_KEY + b" \r\nx", [LONG_KEY, b"x"]),
        (LONG_KEY + b"#1\n!~\n", [LONG_KEY + b"#1", b"!~"]),
    ],
)
def test_keys_are_lines_without_comments(tmp_path: Path, data: bytes, keys: list[bytes]) -> None:
    (tmp_path / "keys").write_bytes(data)
    assert read_keys(tmp_path / "keys") == keys


@pytest.mark.parametrize(
    "line", ["zwölf", "a b", "key # of Weblate", "a\tb", "a\0b", "a\x7f", "\u00a0a", "\ufeffa", "ключ"]
)
def test_an_invalid_key_is_reported_by_line_and_not_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_bytes(b"# ours\n" + LONG_KEY + b"\n" + line.encode())
    with pytest.raises(DataError, match=r"keys, line 3 is not a key: it must be printable ASCII") as caught:
        read_keys(tmp_path / "keys")
    assert line not in str(caught.value)
    (tmp_path / "keys").write_bytes(LONG_KEY.decode().encode("utf-16"))
    with pytest.raises(DataError, match="line 1 is not a key"):
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize("data", [b"", b"\n \n", b"# a comment\n", b"\xef\xbb\xbf"])
def test_a_file_of_comments_has_no_key(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "keys").write_bytes(data)
    with pytest.raises(DataError, match="has no key"):
        read_keys(tmp_path / "keys")


def test_short_or_world_readable_keys_cause_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    for data, mode, words in (
        (LONG_KEY, 0o600, []),
        (LONG_KEY, 0o640, []),
        (LONG_KEY[1:], 0o600, ["1 of 1 keys have fewer than 16 characters"]),
        (LONG_KEY + b"\na\nb", 0o600, ["2 of 3 keys have fewer"]),
        (LONG_KEY, 0o644, ["can be read by every user of this machine"]),
        (b"a", 0o604, ["fewer than", "every user"]),
    ):
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        read_keys(path)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == len(words)
        assert all(word in line for word, line in zip(words, lines, strict=True))


def test_the_application_accepts_every_host_by_default() -> None:
    """As when another server runs the application."""
    assert Access().has_host("any.example")
