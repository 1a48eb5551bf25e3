"""Route templates: `/users/17` and `/users/18` are one endpoint, `/users/{id}`. Pure.

However a path is spelt, it is the same path: percent-encoding, doubled and trailing slashes and
dot segments are undone before anything is looked up. Segments are looked up one by one, and each
place in the tree of templates is visited at most once, so the work is bounded by the templates.
"""

from __future__ import annotations

from collections.abc import Iterable

from limen.errors import ConfigurationError, shown
from limen.http.paths import cut_path, segments_of, unquoted

MAX_TEMPLATES = 10_000
_MAX_TEMPLATE = 1_000
_MAX_SEGMENTS = 64
_KINDS = ("", "str", "int", "float", "uuid")
"""What a segment may hold, as frameworks write it. Here each stands for any text."""


class _Place:
    """What may come next at one place in the tree, and which template ends here."""

    __slots__ = ("any", "end", "literals", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Place] = {}
        self.any: _Place | None = None
        self.end: str | None = None
        self.rest: str | None = None


class Routes:
    """A set of templates. The most specific wins: from left to right, fixed text over `{id}` over
    `{path:path}`. Of two templates of the same form, the first names both.

    ```python
    routes = Routes(["/users/me", "/users/{id}", "/files/{path:path}"])
    assert routes.template_of("/users/17") == "/users/{id}"
    ```
    """

    def __init__(self, templates: Iterable[str], *, case_sensitive: bool = True) -> None:
        """Validate, or raise `ConfigurationError`.

        `case_sensitive=False` is for applications that take `/Login` for `/login`.
        """
        if isinstance(templates, str):
            raise ConfigurationError(f"templates must be a list, got the text {shown(templates)}")
        self._folds = not case_sensitive
        self._root = _Place()
        self._exact: dict[str, str] = {}
        """Templates without parameters, by their path."""
        found = list(templates)
        if len(found) > MAX_TEMPLATES:
            raise ConfigurationError(f"at most {MAX_TEMPLATES:,} templates, got {len(found):,}")
        for template in found:
            self._add(template)

    def template_of(self, path: str, *, decoded: bool = False) -> str | None:
        """Return the template of a path; None when there is none.

        `path` is as it was sent, percent-encoded, with or without a query; `decoded=True` is for
        the path of ASGI and WSGI, which must not be decoded again.
        """
        found = self._exact.get(path)
        if found is not None:
            return found
        path = cut_path(path, decoded)
        plain = unquoted(path, decoded)
        if not plain.startswith("/"):
            return None
        found = self._find(segments_of(plain))
        if found is None and ("/." in path or ("%2" in path and not decoded)):
            # Others keep an encoded slash, or dots, as part of a segment: nobody gets away by it.
            whole = [unquoted(part, decoded) for part in path.split("/") if part]
            found = self._find(whole)
        return found

    def _find(self, segments: list[str]) -> str | None:
        if self._folds:
            segments = [segment.lower() for segment in segments]
        return _find(self._root, segments, 0)

    def _add(self, template: object) -> None:
        parts = _parts(template)
        place = self._root
        literals: list[str] = []
        for kind, text in parts:
            if kind == "rest":
                place.rest = place.rest or str(template)
                return
            if kind == "any":
                place.any = place.any or _Place()
                place = place.any
            else:
                text = text.lower() if self._folds else text
                literals.append(text)
                place = place.literals.setdefault(text, _Place())
        place.end = place.end or str(template)
        if len(literals) == len(parts) and "%" not in "".join(literals):
            self._exact.setdefault("/" + "/".join(literals), place.end)


def _find(place: _Place, segments: list[str], at: int) -> str | None:
    if at == len(segments):
        return place.end or place.rest
    literal = place.literals.get(segments[at])
    if literal is not None:
        found = _find(literal, segments, at + 1)
        if found is not None:
            return found
    if place.any is not None:
        found = _find(place.any, segments, at + 1)
        if found is not None:
            return found
    return place.rest


def _parts(template: object) -> list[tuple[str, str]]:
    """Return a template as segments: `literal` with its text, `any`, or `rest` at the end."""
    if not isinstance(template, str) or not template.startswith("/"):
        raise ConfigurationError(
            f"a template must be text that begins with '/', got {shown(template)}"
        )
    segments = [segment for segment in template.split("/") if segment]
    if len(template) > _MAX_TEMPLATE or len(segments) > _MAX_SEGMENTS:
        raise ConfigurationError(
            f"a template has at most {_MAX_TEMPLATE:,} characters and {_MAX_SEGMENTS} segments, "
            f"got {shown(template)}"
        )
    found: list[tuple[str, str]] = []
    for number, segment in enumerate(segments, 1):
        kind, text = _part(segment, template)
        if kind == "rest" and number < len(segments):
            raise ConfigurationError(
                f"{segment} takes all that is left, and must come last, got {shown(template)}"
            )
        found.append((kind, text))
    return found


def _part(segment: str, template: str) -> tuple[str, str]:
    if "{" not in segment and "}" not in segment:
        text = unquoted(segment, False)
        if text in (".", "..") or "/" in text or "?" in text or "#" in text:
            raise ConfigurationError(
                f"a template has no dot segments, query or encoded slashes, got {shown(template)}"
            )
        return "literal", text
    name, _, kind = segment[1:-1].partition(":")
    if segment[0] == "{" and segment[-1] == "}" and name.isidentifier():
        if kind in _KINDS:
            return "any", ""
        if kind == "path":
            return "rest", ""
    raise ConfigurationError(
        f"a parameter is a whole segment, such as {{id}} or {{path:path}}, got {segment!r} in "
        f"{shown(template)}"
    )
