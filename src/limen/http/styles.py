"""The styles of headers: their names, what each of them writes, and which go together. Pure.

A style is named after the draft, or the custom, that its clients were written for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from limen.errors import ConfigurationError, did_you_mean, shown

HeaderStyle = Literal["draft-11", "draft-07", "draft-03", "x-ratelimit", "x-ratelimit-delta"]
"""The drafts are those of draft-ietf-httpapi-ratelimit-headers. `x-ratelimit` tells the reset in
seconds since 1970, `x-ratelimit-delta` in seconds from now."""

RETRY_AFTER = "Retry-After"
"""What every style has with a refusal, and no style at all as well."""

_TWO = ("RateLimit-Policy", "RateLimit")
_THREE = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
_CUSTOM = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
WRITTEN: dict[HeaderStyle, tuple[str, ...]] = {
    "draft-11": _TWO,
    "draft-07": _TWO,
    "draft-03": _THREE,
    "x-ratelimit": _CUSTOM,
    "x-ratelimit-delta": _CUSTOM,
}
"""The headers that each style writes. Two styles that write the same one cannot go together."""


def valid_styles(styles: object) -> tuple[HeaderStyle, ...]:
    """Return the styles of a setting, or raise `ConfigurationError`. An empty list is none."""
    if isinstance(styles, str) or not isinstance(styles, Iterable):
        raise ConfigurationError(f"headers must be a list of styles, got {shown(styles)}")
    found = tuple(styles)
    writers: dict[str, HeaderStyle] = {}
    for style in found:
        if style not in get_args(HeaderStyle):
            raise unknown_style(style)
        for name in WRITTEN[style]:
            other = writers.setdefault(name, style)
            if other != style:
                raise ConfigurationError(
                    f"the styles {other!r} and {style!r} both write {name}; choose one of them"
                )
    for style in found:
        if found.count(style) > 1:
            raise ConfigurationError(f"the style {style!r} stands twice among {shown(found)}")
    return found


def exposed_headers(styles: Iterable[HeaderStyle] = ("draft-11",), already: str = "") -> str:
    """Return the `Access-Control-Expose-Headers` that lets pages of other origins read the styles.

    `already` is the value that the response has; its names come first, and none comes twice.
    """
    found: dict[str, str] = {}
    # Also beside a `*`, which is no wildcard for a page that sends cookies.
    for name in (*already.split(","), *[name for style in styles for name in WRITTEN[style]]):
        if name.strip():
            found.setdefault(name.strip().lower(), name.strip())
    found.setdefault(RETRY_AFTER.lower(), RETRY_AFTER)
    return ", ".join(found.values())


def unknown_style(style: object) -> ConfigurationError:
    """Return what to raise for a style that there is not."""
    known: tuple[str, ...] = get_args(HeaderStyle)
    return ConfigurationError(
        f"unknown style of headers {shown(style)}{did_you_mean(style, known)}; "
        f"there are: {', '.join(known)}"
    )
