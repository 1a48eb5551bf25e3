"""The certificate of the service: its dates, and what is said when it is loaded again."""

from __future__ import annotations

import shutil
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from limen.server.process.listen import expiry_warning, validity
from tests.server.product import Product, product
from tests.waiting import wait_until

PAIRS = Path(__file__).parent / "tls"
ONE = PAIRS / "one.crt"
DAY_S = 86_400


def make(folder: Path, days: int) -> dict[str, str]:
    """Write a certificate that is valid for some days from now; return the settings for it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: there is nothing to make certificates with")
    command = ["openssl", "req", "-x509", "-nodes", "-days", str(days), "-subj", "/CN=localhost"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-out", str(folder / "crt"), "-keyout", str(folder / "key")]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return {"tls__certificate": str(folder / "crt"), "tls__key": str(folder / "key")}


def logged(served: Product) -> str:
    return "".join(served.complained)


@pytest.mark.parametrize(
    ("days_left", "expected"),
    [(-3, "expired on"), (0, "expired on"), (13.5, "in 13.5 days"), (14.1, None), (4_000, None)],
)
def test_warns_of_a_certificate_that_has_expired_or_will_soon(
    days_left: float, expected: str | None
) -> None:
    _, not_after = validity(ONE.read_text())
    warning = expiry_warning(ONE, not_after.timestamp() - days_left * DAY_S)
    if expected is None:
        assert warning is None
    else:
        assert warning is not None
        assert f"{ONE} expire" in warning
        assert expected in warning
        assert "2126-10-22 18:02 UTC" in warning


def test_reads_the_dates_that_openssl_prints() -> None:
    # openssl x509 -in one.crt -noout -dates
    assert validity(ONE.read_text()) == (
        datetime(2026, 11, 15, 18, 2, 45, tzinfo=UTC),
        datetime(2126, 10, 22, 18, 2, 45, tzinfo=UTC),
    )


def test_warns_of_a_certificate_that_is_not_valid_yet() -> None:
    not_before, _ = validity(ONE.read_text())
    warning = expiry_warning(ONE, not_before.timestamp() - 1)
    assert warning is not None
    assert "is not valid before 2026-11-15 18:02 UTC" in warning


@pytest.mark.parametrize("content", ["", "nonsense", ONE.read_text()[:200]])
def test_a_file_that_is_no_certificate_has_no_dates(tmp_path: Path, content: str) -> None:
    (tmp_path / "crt").write_text(content)
    assert expiry_warning(tmp_path / "crt", 0.0) is None
    assert expiry_warning(tmp_path / "missing", 0.0) is None


def test_the_service_warns_at_start_and_at_reload(tmp_path: Path) -> None:
    settings = make(tmp_path, 30)
    for ending in ("crt", "key"):
        shutil.copyfile(PAIRS / f"expired.{ending}", tmp_path / ending)
    with product(tmp_path / "served", **settings) as served:
        wait_until(lambda: f"{tmp_path / 'crt'} expired on 2021-01-01 00:00 UTC" in logged(served))
        assert logged(served).count("expired on") == 1, "once for HTTP and gRPC"
        make(tmp_path, 2)
        served.signal(signal.SIGHUP)
        wait_until(lambda: "in 2.0 days" in logged(served))
        make(tmp_path, 30)
        served.signal(signal.SIGHUP)
        wait_until(lambda: logged(served).count("SIGHUP: rules") == 2)
        assert logged(served).count("TLS:") == 2


def test_a_failed_reload_does_not_say_that_the_certificate_was_loaded(tmp_path: Path) -> None:
    settings = make(tmp_path, 2)
    with product(tmp_path / "served", **settings) as served:
        wait_until(lambda: "in 2.0 days" in logged(served))
        (tmp_path / "crt").write_text("nonsense")
        served.signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP: rules" in logged(served))
        assert "the certificate stays as it was: TLS:" in logged(served)
        assert "loaded anew" not in logged(served)
