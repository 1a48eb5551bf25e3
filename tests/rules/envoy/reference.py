"""What envoyproxy/ratelimit does with a descriptor, as its documentation and source tell it.

It shares nothing with the import: it works on plain data, joins keys and values by `_` as that
service does, and matches patterns by regular expressions. Read at commits 6bcd4d2 and 7590834:
`GetLimit` and `loadDescriptors` of src/config/config_impl.go, src/limiter/cache_key.go and
`UnitToDivider` of src/utils/utilities.go.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

DAY = 86_400
SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}

Entries = Sequence[tuple[str, str]]


class Found(NamedTuple):
    """The limit that a descriptor is under, and the counter that it is counted by."""

    requests: int
    seconds: int
    unlimited: bool
    shadow: bool
    counter: tuple[str, ...]


class Reference:
    """The service, loaded with configurations; those of one domain are merged."""

    def __init__(self, configs: Iterable[dict[str, Any]]) -> None:
        self._domains: dict[str, list[dict[str, Any]]] = {}
        self._hits: Counter[tuple[Any, ...]] = Counter()
        for config in configs:
            self._domains.setdefault(config["domain"], []).extend(config["descriptors"])

    def find(self, domain: str, entries: Entries) -> Found | None:
        level = self._domains.get(domain, [])
        counter = [domain]
        node: dict[str, Any] | None = None
        for key, value in entries:
            named = {_joined(each): each for each in level}
            node, counted = named.get(f"{key}_{value}"), value
            if node is None:
                for joined, each in named.items():
                    if "*" in joined and _fits(joined, f"{key}_{value}"):
                        node = each
                        if each.get("share_threshold"):
                            counted = each["value"]
                        break
            if node is None:
                node = named.get(key)
            if node is None:
                return None
            counter += [key, counted]
            level = node.get("descriptors", [])
        limit = node.get("rate_limit") if node else None
        if node is None or limit is None:
            return None
        return Found(
            limit.get("requests_per_unit", 0),
            SECONDS.get(limit.get("unit", ""), 0),
            limit.get("unlimited", False),
            node.get("shadow_mode", False),
            tuple(counter),
        )

    def admits(self, domain: str, entries: Entries, now: float) -> bool:
        """Count a request, and say whether it may pass."""
        found = self.find(domain, entries)
        if found is None or found.unlimited:
            return True
        window = (*found.counter, int(now) // found.seconds * found.seconds)
        self._hits[window] += 1
        return found.shadow or self._hits[window] <= found.requests


def _joined(node: dict[str, Any]) -> str:
    return f"{node['key']}_{node['value']}" if node.get("value") else str(node["key"])


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
