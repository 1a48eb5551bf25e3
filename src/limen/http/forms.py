"""The forms that a refusal may have, and which of them a client asks for by `Accept`. Pure.

`Accept` is read as RFC 9110, 12.5.1 has it, with more patience: what cannot be understood is not
counted. Nobody gets a 406: who takes none of the forms is refused all the same, as a program is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import Literal

Form = Literal["application/problem+json", "text/html", "text/plain"]

# Of forms that are liked equally the first is chosen: programs say less of what they like.
_ASKED_BY: dict[Form, tuple[str, ...]] = {
    # Who takes any other JSON can read this one, and would not want a page.
    "application/problem+json": (
        "application/problem+json",
        "application/json",
        "application/*",
        "*/*",
    ),
    "text/html": ("text/html", "text/*", "*/*"),
    "text/plain": ("text/plain", "text/*", "*/*"),
}
"""What asks for a form, the most specific first: that alone counts."""
# Whoever is refused chooses this header, and must not make it costly. Browsers send 150 characters.
_MAX_ACCEPT, _MAX_RANGES = 1_000, 32
_WEIGHT = re.compile(r"[0-9]{1,3}\.?[0-9]{0,9}|\.[0-9]{1,9}")
_OWS = " \t"

# The browser has the colours for dark and for light; nothing is loaded, and nothing runs.
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 1.125rem/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; \
padding: 0 1rem; overflow-wrap: anywhere }}
h1 {{ font-size: 1.5rem }}
small {{ opacity: 0.7 }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{detail}</p>
{reference}</body>
</html>"""


def form_of(accept: str) -> Form:
    """Return the form that `Accept` likes best; an empty one has no wish.

    Several headers of that name are joined by commas.
    """
    return _form_of(accept[:_MAX_ACCEPT])


def page(title: str, detail: str, reference: str = "") -> str:
    """Return a page that says what happened. The reference, if any, is for who asks for help."""
    small = f"<p><small>{escape(reference)}</small></p>\n" if reference else ""
    return _PAGE.format(title=escape(title), detail=escape(detail), reference=small)


@lru_cache(maxsize=256)
def _form_of(accept: str) -> Form:
    weights = _weights(accept)

    def liking(form: Form) -> float:
        return next((weights[name] for name in _ASKED_BY[form] if name in weights), 0.0)

    return max(_ASKED_BY, key=liking)


def _weights(accept: str) -> dict[str, float]:
    """Return how much each range of media types is liked, from 0 to 1."""
    found: dict[str, float] = {}
    for item in accept.lower().split(",", _MAX_RANGES)[:_MAX_RANGES]:
        name, *parameters = [part.strip(_OWS) for part in item.split(";")]
        weight = _weight(parameters)
        if weight is None:
            continue
        if name == "*":
            name = "*/*"
        elif name.endswith("+json") and name != "application/problem+json":
            name = "application/json"
        found[name] = max(weight, found.get(name, 0.0))
    return found


def _weight(parameters: list[str]) -> float | None:
    """Return the `q` among the parameters of a range; None when it is none."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.rstrip(_OWS) == "q":
            value = value.strip(_OWS)
            return min(float(value), 1.0) if _WEIGHT.fullmatch(value) else None
    return 1.0
