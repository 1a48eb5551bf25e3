"""Who is the client: nothing an untrusted one sends changes the answer."""

from __future__ import annotations

import ipaddress
import random
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.errors import ConfigurationError
from limen.http import AddressSettings, Client, ClientAddresses
from limen.http.address import _read
from limen.rules.match import Values, canonical

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.7", "unix")


def trusting(header: str, **more: Any) -> ClientAddresses:
    return ClientAddresses(AddressSettings(trusted_proxies=PROXIES, header=header, **more))


def counting(hops: int, header: str = "X-Forwarded-For") -> ClientAddresses:
    return ClientAddresses(AddressSettings(trusted_hops=hops, header=header))


NOBODY = ClientAddresses()
LISTED = trusting("X-Forwarded-For")
FORWARDED = trusting("Forwarded")
SINGLE = trusting("X-Real-IP")
PROXY = "10.0.0.1"

CASES: list[tuple[str, ClientAddresses, str | None, list[str], str | None]] = [
    # The peer, and no header.
    ("peer", NOBODY, "203.0.113.9", [], "203.0.113.9"),
    ("peer-despite-header", NOBODY, "203.0.113.9", ["6.6.6.6"], "203.0.113.9"),
    ("peer-ipv6-by-64", NOBODY, "2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::"),
    ("peer-ipv6-spelling", NOBODY, "2001:0DB8:0001:0002::F", [], "2001:db8:1:2::"),
    ("peer-mapped", NOBODY, "::ffff:203.0.113.9", [], "203.0.113.9"),
    ("peer-mapped-hex", NOBODY, "::ffff:cb00:7109", [], "203.0.113.9"),
    ("peer-nat64", NOBODY, "64:ff9b::203.0.113.9", [], "203.0.113.9"),
    ("peer-not-nat64", NOBODY, "64:ff9b:1::203.0.113.9", [], "64:ff9b:1::"),
    ("peer-zone", NOBODY, "fe80::1%eth0", [], "fe80::"),
    ("peer-none", NOBODY, None, [], None),
    ("peer-empty", NOBODY, "", [], None),
    ("peer-no-address", NOBODY, "testclient", [], None),
    ("peer-path", NOBODY, "/run/limen.sock", [], None),
    # Who is not trusted is not asked.
    ("spoof-direct", LISTED, "203.0.113.9", ["6.6.6.6"], "203.0.113.9"),
    ("spoof-as-proxy", LISTED, "203.0.113.9", ["10.0.0.1, 10.0.0.2"], "203.0.113.9"),
    ("spoof-forwarded", FORWARDED, "203.0.113.9", ["for=6.6.6.6"], "203.0.113.9"),
    ("spoof-real-ip", SINGLE, "203.0.113.9", ["6.6.6.6"], "203.0.113.9"),
    ("spoof-nat64-of-a-proxy", LISTED, "64:ff9b::10.0.0.1", ["6.6.6.6"], "10.0.0.1"),
    ("next-to-a-proxy", LISTED, "192.0.2.8", ["6.6.6.6"], "192.0.2.8"),
    # X-Forwarded-For.
    ("one-hop", LISTED, PROXY, ["203.0.113.9"], "203.0.113.9"),
    ("proxy-as-mapped", LISTED, "::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
    ("proxy-ipv6", LISTED, "2001:db8:ffff::1", ["203.0.113.9"], "203.0.113.9"),
    ("proxy-unix", LISTED, None, ["203.0.113.9"], "203.0.113.9"),
    ("proxy-unix-path", LISTED, "/run/nginx.sock", ["203.0.113.9"], "203.0.113.9"),
    ("proxy-unix-junk", LISTED, None, ["junk"], None),
    ("two-hops", LISTED, PROXY, ["203.0.113.9, 10.9.9.9"], "203.0.113.9"),
    ("spoof-left", LISTED, PROXY, ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
    ("spoof-left-as-proxy", LISTED, PROXY, ["6.6.6.6, 10.0.0.3, 203.0.113.9"], "203.0.113.9"),
    ("spoof-left-junk", LISTED, PROXY, ['"<script>, \x00, 203.0.113.9'], "203.0.113.9"),
    ("spoof-line-above", LISTED, PROXY, ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
    ("hops-in-lines", LISTED, PROXY, ["203.0.113.9", "10.0.0.2", "192.0.2.7"], "203.0.113.9"),
    ("all-trusted", LISTED, PROXY, ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ("no-header", LISTED, PROXY, [], PROXY),
    ("empty-header", LISTED, PROXY, [""], PROXY),
    ("only-commas", LISTED, PROXY, [" , ,, "], PROXY),
    ("empty-entries", LISTED, PROXY, [",203.0.113.9,,", ""], "203.0.113.9"),
    ("tabs", LISTED, PROXY, ["6.6.6.6,\t203.0.113.9\t"], "203.0.113.9"),
    ("port", LISTED, PROXY, ["203.0.113.9:4711"], "203.0.113.9"),
    ("bad-port", LISTED, PROXY, ["203.0.113.9:http"], PROXY),
    ("no-port", LISTED, PROXY, ["203.0.113.9:"], PROXY),
    ("ipv6", LISTED, PROXY, ["2001:db8:1:2::3"], "2001:db8:1:2::"),
    ("ipv6-brackets", LISTED, PROXY, ["[2001:db8:1:2::3]"], "2001:db8:1:2::"),
    ("ipv6-port", LISTED, PROXY, ["[2001:db8:1:2::3]:4711"], "2001:db8:1:2::"),
    ("ipv6-zone", LISTED, PROXY, ["[fe80::1%25eth0]:80"], "fe80::"),
    ("ipv4-brackets", LISTED, PROXY, ["[203.0.113.9]"], PROXY),
    ("open-bracket", LISTED, PROXY, ["[2001:db8::1"], PROXY),
    ("after-bracket", LISTED, PROXY, ["[2001:db8::1]x"], PROXY),
    ("quoted", LISTED, PROXY, ['"203.0.113.9"'], "203.0.113.9"),
    ("mapped", LISTED, PROXY, ["::FFFF:203.0.113.9"], "203.0.113.9"),
    ("mapped-proxy", LISTED, PROXY, ["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
    ("nat64", LISTED, PROXY, ["64:ff9b::cb00:7109"], "203.0.113.9"),
    ("unknown", LISTED, PROXY, ["unknown"], PROXY),
    ("unknown-behind-a-proxy", LISTED, PROXY, ["unknown, 10.0.0.2"], "10.0.0.2"),
    ("junk", LISTED, PROXY, ["203.0.113.9, <junk>"], PROXY),
    ("leading-zeros", LISTED, PROXY, ["203.0.113.009"], PROXY),
    ("short-form", LISTED, PROXY, ["127.1"], PROXY),
    ("other-digits", LISTED, PROXY, ["٢٠٣.0.113.9"], PROXY),
    ("network", LISTED, PROXY, ["203.0.113.0/24"], PROXY),
    ("very-long-left", LISTED, PROXY, ["6.6.6.6," * 9_000 + "203.0.113.9"], "203.0.113.9"),
    ("very-long-entry", LISTED, PROXY, ["1" * 100_000], PROXY),
    ("too-many-proxies", LISTED, PROXY, ["203.0.113.9," + "10.0.0.2," * 9_000], "10.0.0.2"),
    # Forwarded.
    ("for", FORWARDED, PROXY, ["for=203.0.113.9"], "203.0.113.9"),
    ("for-any-case", FORWARDED, PROXY, ["For=203.0.113.9;Proto=https"], "203.0.113.9"),
    ("for-last", FORWARDED, PROXY, ["proto=https; by=10.0.0.1; for=203.0.113.9"], "203.0.113.9"),
    ("for-ipv6", FORWARDED, PROXY, ['for="[2001:db8:1:2::3]:4711"'], "2001:db8:1:2::"),
    ("for-port", FORWARDED, PROXY, ['for="203.0.113.9:80"'], "203.0.113.9"),
    ("for-hidden-port", FORWARDED, PROXY, ['for="203.0.113.9:_p-1"'], "203.0.113.9"),
    ("for-unknown", FORWARDED, PROXY, ["for=unknown"], PROXY),
    ("for-hidden", FORWARDED, PROXY, ["for=_gazonk"], PROXY),
    ("for-two-hops", FORWARDED, PROXY, ["for=203.0.113.9, for=10.0.0.2"], "203.0.113.9"),
    ("for-spoof-left", FORWARDED, PROXY, ["for=6.6.6.6, for=203.0.113.9"], "203.0.113.9"),
    ("for-lines", FORWARDED, PROXY, ["for=6.6.6.6", "for=203.0.113.9"], "203.0.113.9"),
    ("for-open-quote", FORWARDED, PROXY, ['for="6.6.6.6, for=203.0.113.9'], "203.0.113.9"),
    ("for-odd-quotes", FORWARDED, PROXY, ['a="b", ", for="203.0.113.9"'], "203.0.113.9"),
    ("for-backslash", FORWARDED, PROXY, ['for="6.6.6.6\\, for=203.0.113.9'], "203.0.113.9"),
    ("for-comma", FORWARDED, PROXY, ['for=203.0.113.9;x="a, for=6.6.6.6"'], "203.0.113.9"),
    ("for-escape", FORWARDED, PROXY, ['for=203.0.113.9;x="\\", for=6.6.6.6"'], "203.0.113.9"),
    ("for-semicolon", FORWARDED, PROXY, ['x="a;for=6.6.6.6";for=203.0.113.9'], "203.0.113.9"),
    ("for-twice", FORWARDED, PROXY, ["for=203.0.113.9;for=6.6.6.6"], PROXY),
    ("for-absent", FORWARDED, PROXY, ["proto=https"], PROXY),
    ("for-nothing", FORWARDED, PROXY, ["for="], PROXY),
    ("for-no-pair", FORWARDED, PROXY, ["203.0.113.9"], PROXY),
    ("for-empty", FORWARDED, PROXY, ["", " , "], PROXY),
    ("for-junk-after-quote", FORWARDED, PROXY, ['for="203.0.113.9"x'], PROXY),
    # One address.
    ("real-ip", SINGLE, PROXY, ["203.0.113.9"], "203.0.113.9"),
    ("real-ip-of-a-proxy", SINGLE, PROXY, ["10.0.0.2"], "10.0.0.2"),
    ("real-ip-twice", SINGLE, PROXY, ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
    ("real-ip-junk", SINGLE, PROXY, ["junk"], PROXY),
    # Counted hops.
    ("hop-1", counting(1), "198.51.100.1", ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
    ("hop-2", counting(2), "198.51.100.1", ["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
    ("hop-2-lines", counting(2), "198.51.100.1", ["203.0.113.9", "10.0.0.2"], "203.0.113.9"),
    ("hop-2-of-1", counting(2), "198.51.100.1", ["203.0.113.9"], "198.51.100.1"),
    ("hop-0-entries", counting(1), "198.51.100.1", [], "198.51.100.1"),
    ("hop-empty", counting(1), "198.51.100.1", ["203.0.113.9, ,"], "203.0.113.9"),
    ("hop-junk", counting(2), "198.51.100.1", ["junk, 10.0.0.2"], "10.0.0.2"),
    ("hop-unix", counting(1), None, ["203.0.113.9"], "203.0.113.9"),
    ("hop-forwarded", counting(1, "forwarded"), PROXY, ["for=6.6.6.6,for=8.8.8.8"], "8.8.8.8"),
    ("hop-real-ip", counting(2, "x-real-ip"), PROXY, ["203.0.113.9"], "203.0.113.9"),
]


@pytest.mark.parametrize(
    ("addresses", "peer", "lines", "key"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_the_client_is_known(
    addresses: ClientAddresses, peer: str | None, lines: list[str], key: str | None
) -> None:
    client = addresses.of(peer, lines)
    assert (client.key if client else None) == key


def test_a_client_is_an_address_and_what_to_count_by() -> None:
    assert NOBODY.of("2001:DB8:1:2::03") == Client("2001:db8:1:2::3", "2001:db8:1:2::")
    assert NOBODY.of("203.0.113.9") == Client("203.0.113.9", "203.0.113.9")


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (48, "2001:db8:1::"),
        (56, "2001:db8:1:200::"),
        (64, "2001:db8:1:2ff::"),
        (128, "2001:db8:1:2ff::3"),
    ],
)
def test_how_much_of_ipv6_counts_can_be_set(prefix: int, key: str) -> None:
    client = ClientAddresses(AddressSettings(ipv6_prefix=prefix)).of("2001:db8:1:2ff::3")
    assert client is not None
    assert (client.address, client.key) == ("2001:db8:1:2ff::3", key)


def test_all_addresses_of_one_64_are_one_client() -> None:
    network = int(ipaddress.IPv6Address("2001:db8:1:2::"))
    of = random.Random(1)
    keys = set()
    for number in range(0, 2**16, 16):
        host = of.choice((number, number << 48, of.getrandbits(64)))
        client = NOBODY.of(str(ipaddress.IPv6Address(network + host)))
        assert client is not None
        keys.add(client.key)
    assert keys == {"2001:db8:1:2::"}


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_mapped_and_translated_ipv4_are_ipv4_and_stay_apart(
    one: ipaddress.IPv4Address, other: ipaddress.IPv4Address
) -> None:
    for prefix in ("", "::ffff:", "64:ff9b::"):
        clients = [NOBODY.of(f"{prefix}{address}") for address in (one, other)]
        assert clients[0] == Client(str(one), str(one))
        assert (clients[0] == clients[1]) == (one == other)


@given(st.ip_addresses(), st.sampled_from([48, 56, 64, 128]))
def test_rules_know_addresses_by_the_same_spelling(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, prefix: int
) -> None:
    client = ClientAddresses(AddressSettings(ipv6_prefix=prefix)).of(address.exploded)
    assert client is not None
    assert canonical(client.address) == client.address
    assert canonical(client.key) == client.key
    if ":" in client.address:
        assert Values([f"{client.key}/{prefix}"], are_addresses=True).holds(client.address)


def junk() -> st.SearchStrategy[list[str]]:
    """What a client may send: anything at all, and what looks right."""
    piece = st.sampled_from(
        [
            ",",
            '"',
            "\\",
            ";",
            "for=",
            "6.6.6.6",
            "10.0.0.1",
            "[",
            "]",
            ":",
            "unknown",
            " ",
            "=",
            "::1",
        ]
    ) | st.text(max_size=5)
    return st.lists(st.lists(piece, max_size=12).map("".join), max_size=3)


def sent_through(lines: list[str], added: list[str], joined: bool) -> list[str]:
    """Return the lines after proxies added theirs: to the last line, or as a new one."""
    for entry in added:
        lines = [*lines[:-1], f"{lines[-1]}, {entry}"] if joined and lines else [*lines, entry]
    return lines


@given(junk(), st.booleans(), st.sampled_from(["203.0.113.9", "2001:db8:1::5"]))
def test_nothing_an_untrusted_client_sends_changes_the_answer(
    lines: list[str], joined: bool, client: str
) -> None:
    for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        assert trusting(header).of(client, lines) == NOBODY.of(client)
        assert NOBODY.of(client, lines) == NOBODY.of(client)
    hops = [client, "10.0.0.3", "10.0.0.2"]
    listed = sent_through(lines, hops, joined)
    assert LISTED.of(PROXY, listed) == NOBODY.of(client)
    assert counting(3).of(PROXY, listed) == NOBODY.of(client)
    marked = [f'for="[{hop}]"' if ":" in hop else f"for={hop};proto=http" for hop in hops]
    forwarded = sent_through(lines, marked, joined)
    assert FORWARDED.of(PROXY, forwarded) == NOBODY.of(client)
    assert counting(3, "Forwarded").of(PROXY, forwarded) == NOBODY.of(client)


@given(junk(), st.none() | st.text(max_size=20) | st.just(PROXY))
def test_junk_is_never_an_error(lines: list[str], peer: str | None) -> None:
    for addresses in (NOBODY, LISTED, FORWARDED, SINGLE, counting(2), counting(2, "forwarded")):
        addresses.of(peer, lines)


@pytest.mark.parametrize(
    "line",
    [
        '"' * 60_000,
        "," * 60_000,
        '\\"' * 30_000,
        'a="b";' * 10_000,
        "=;" * 30_000,
        "for=10.0.0.2," * 5_000,
    ],
    ids=lambda line: line[:6],
)
def test_the_work_is_bounded(line: str) -> None:
    lines = [line] * 50
    for addresses in (LISTED, FORWARDED, counting(16), counting(16, "forwarded")):
        addresses.of(PROXY, lines)
        spent = min(timed(addresses, lines) for _ in range(5))
        assert spent < 0.05


def test_long_texts_are_not_remembered() -> None:
    before = _read.cache_info().misses
    assert LISTED.of("1" * 200, []) is None
    assert LISTED.of(PROXY, [f"203.0.113.9{' ' * 9_000}x"]) == NOBODY.of(PROXY)
    assert _read.cache_info().misses <= before + 1


def timed(addresses: ClientAddresses, lines: list[str]) -> float:
    start = time.thread_time()  # the work, not the wait for a core
    addresses.of(PROXY, lines)
    return time.thread_time() - start


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"header": "X-Forwarded-For"}, "name the proxies by trusted_proxies"),
        ({"trusted_hops": 1}, "name the one header that the trusted proxies always write"),
        ({"trusted_proxies": ("10.0.0.0/8",)}, "name the one header"),
        ({"trusted_hops": 1, "header": "X-Client"}, "header must be one of x-forwarded-for, "),
        ({"trusted_hops": 1, "header": 3}, "header must be one of"),
        ({"trusted_hops": 1, "trusted_proxies": ("10.0.0.1",), "header": "forwarded"}, "not both"),
        ({"trusted_hops": -1, "header": "forwarded"}, "from 0 to 16, got -1"),
        ({"trusted_hops": True, "header": "forwarded"}, "from 0 to 16, got True"),
        ({"trusted_hops": 17, "header": "forwarded"}, "from 0 to 16, got 17"),
        ({"trusted_proxies": "10.0.0.0/8", "header": "forwarded"}, "must be a list, got the text"),
        ({"trusted_proxies": ("10.0.0.1/8",), "header": "forwarded"}, "mean '10.0.0.0/8'"),
        ({"trusted_proxies": ("proxy",), "header": "forwarded"}, "network such as '10.0.0.0/8'"),
        ({"trusted_proxies": (7,), "header": "forwarded"}, "must be a list of text, got 7"),
        ({"trusted_proxies": ("*",), "header": "forwarded"}, "could then choose an address"),
        ({"trusted_proxies": ("0.0.0.0/0",), "header": "forwarded"}, "could then choose"),
        ({"trusted_proxies": ("::/0",), "header": "forwarded"}, "could then choose"),
        ({"ipv6_prefix": 65}, "ipv6_prefix must be 48, 56, 64 or 128, got 65"),
        ({"ipv6_prefix": "64"}, "ipv6_prefix must be"),
    ],
)
def test_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ClientAddresses(AddressSettings(**settings))


def test_settings_come_from_a_file() -> None:
    text = b'{"trusted_proxies": ["::ffff:10.0.0.0/104"], "header": "X-Forwarded-For"}'
    addresses = ClientAddresses(msgspec.json.decode(text, type=AddressSettings))
    assert addresses.header == "x-forwarded-for"
    assert addresses.of("10.1.2.3", ["203.0.113.9"]) == NOBODY.of("203.0.113.9")
    with pytest.raises(msgspec.ValidationError, match="unknown field `proxies`"):
        msgspec.json.decode(b'{"proxies": []}', type=AddressSettings)


def test_there_are_at_least_45_cases() -> None:
    assert len({case[0] for case in CASES}) == len(CASES) >= 45
