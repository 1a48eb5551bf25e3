"""The files of the dashboard: all are there, under strict rules, and nothing else is."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product
from tests.server.raw import Response

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "limen" / "server" / "dashboard" / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CSP = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
PAGES = ["/", "/rules", "/rules/new", "/rules/history", "/rules/per-user", "/rules/per-user/edit"]
PAGES += ["/rules/a%2Fb", "/rules/%E2%82%AC", "/rules/..%2F..", "/keys", "/live", "/audit"]
PAGES += ["/tokens", "/?x=1", "/keys?key=%00", f"/rules/{'x' * 3_000}"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("static"), auth__admin_token=ADMIN) as started:
        yield started


def ask(served: Product, path: str, *headers: str, method: str = "GET") -> Response:
    """Send a request to the control plane, which serves the dashboard."""
    return served.ask(path, *headers, method=method, port=served.admin_port)


def is_strict(answer: Response) -> None:
    policy = answer.headers["content-security-policy"]
    found = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert found == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("accept", ["text/html,*/*;q=0.8", "application/json"])
def test_every_page_is_the_one_page(served: Product, path: str, accept: str) -> None:
    answer = ask(served, path, f"Accept: {accept}")
    assert (answer.status, answer.headers["content-type"]) == (200, KINDS[".html"])
    assert answer.body == (STATIC / "index.html").read_bytes()
    is_strict(answer)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is(served: Product, name: str) -> None:
    answer = ask(served, f"/ui/{name}")
    assert (answer.status, answer.body) == (200, (STATIC / name).read_bytes())
    assert answer.headers["content-type"] == KINDS[Path(name).suffix]
    is_strict(answer)
    assert answer.headers["cache-control"] == "no-cache"


def test_a_file_is_sent_again_only_when_it_has_changed(served: Product) -> None:
    tag = ask(served, "/ui/app.js").headers["etag"]
    assert re.fullmatch('"[0-9a-f]{32}"', tag)
    assert tag != ask(served, "/ui/api.js").headers["etag"]
    for sent in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        answer = ask(served, "/ui/app.js", f"If-None-Match: {sent}")
        assert (answer.status, answer.headers["etag"]) == (304, tag)
        assert "content-length" not in answer.headers
        is_strict(answer)
    for sent in ('"other"', tag.strip('"'), "", '"'):
        assert ask(served, "/ui/app.js", f"If-None-Match: {sent}").status == 200


@pytest.mark.parametrize("path", ["/", "/rules/x", "/ui/app.js"])
def test_files_are_for_reading(served: Product, path: str) -> None:
    head = ask(served, path, method="HEAD")
    assert head.status == 200
    assert head.headers["content-length"] == str(len(ask(served, path).body))
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = ask(served, path, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        *("/ui", "/ui/", "/ui/none.js", "/ui/pages", "/ui/pages/", "/ui/App.js", "/ui/app.js/"),
        *("/ui/../pages.py", "/ui/%2e%2e/pages.py", "/ui/..%2fpages.py", "/ui//app.js"),
        *("/ui/..\\pages.py", "/ui/%00", "/ui/app.js%00", "/ui/pages/../app.js", "/ui/./app.js"),
        *("/ui//etc/passwd", "/ui/%252e%252e/pages.py", "/static/app.js", "/app.js"),
        *("/index.html", "/rule", "/rulesx", "/keys/", "/keys/x", "/Rules", "/tokens/x", "//"),
        *("/v1", "/v1/nothing", "/v1/rules", "/healthz/x", "/favicon.ico"),
    ],
)
def test_what_is_not_there_is_not_found(served: Product, path: str) -> None:
    for port in (served.admin_port, served.port):
        answer = served.ask(path, port=port)
        assert (answer.status, answer.problem["title"]) == (404, "Not Found")


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/v1/nothing", "/admin/rules"])
def test_the_administration_has_its_own_not_found(served: Product, path: str) -> None:
    answer = ask(served, path, f"Authorization: Bearer {ADMIN}")
    assert (answer.status, answer.problem["title"]) == (404, "Not Found")


def test_api_page_has_the_security_headers_of_the_dashboard(served: Product) -> None:
    answer = ask(served, "/docs")
    assert answer.headers["cache-control"] == "no-store"
    is_strict(answer)


def test_the_description_stays_where_it_was(served: Product) -> None:
    answer = ask(served, "/docs")
    assert (answer.status, b"/admin/v1/rules" in answer.body) == (200, True)
    assert ask(served, "/openapi.json").status == 200


class Tags(HTMLParser):
    """All tags of a page, and what stands in those that could run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(served: Product, path: str) -> None:
    tags = Tags()
    tags.feed(ask(served, path).body.decode())
    assert tags.inline == []
    names = {name for _, attributes in tags.found for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    links = [
        link for tag, attributes in tags.found for name in ("src", "href")
        if (link := attributes.get(name)) is not None and tag != "a"
    ]  # fmt: skip
    assert links
    for link in links:
        assert link.startswith("/ui/"), link
        assert (STATIC / link.removeprefix("/ui/")).exists(), link


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_write_no_html_and_load_nothing_from_elsewhere(name: str) -> None:
    text = (STATIC / name).read_text()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    assert not re.search(forbidden, text)
    assert not re.search(r"(?:import|from|fetch)\s*\(?\s*[\"'`](?:https?:)?//", text)
    for link in re.findall(r"(?:from|import)\s*\(?\s*[\"']([^\"']+\.js)[\"']", text):
        assert link.startswith("."), link
        assert ((STATIC / name).parent / link).resolve().exists(), link


def test_the_wheel_has_every_file(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("limen-*.whl")
    with zipfile.ZipFile(wheel) as files:
        found = {
            each.removeprefix("limen/server/dashboard/static/")
            for each in files.namelist()
            if each.startswith("limen/server/dashboard/static/")
        }
    assert found == set(FILES)
