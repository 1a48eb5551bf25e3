"""The two modules are one, for two libraries; and each says so when its library is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import limen.adapters

FOLDER = Path(limen.adapters.__path__[0])


def test_the_modules_differ_in_the_name_of_the_library_alone() -> None:
    of_httpx = (FOLDER / "httpx.py").read_text()
    # Where that makes a line too long, it is wrapped.
    renamed = of_httpx.replace("httpx", "httpx2").split()
    assert (FOLDER / "httpx2.py").read_text().split() == renamed


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("package", ["", "http_sf"])
def test_without_its_packages_a_module_names_the_extra(library: str, package: str) -> None:
    package = package or library
    code = f"import sys; sys.modules['{package}'] = None; import limen.adapters.{library}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: limen.adapters.{library} needs the package {package}; "
        f"run: pip install 'limen[{library}]'"
    )


@pytest.mark.parametrize(("library", "other"), [("httpx", "httpx2"), ("httpx2", "httpx")])
def test_a_module_needs_its_own_library_alone(library: str, other: str) -> None:
    code = f"import sys; sys.modules['{other}'] = None; import limen.adapters.{library}"
    subprocess.run([sys.executable, "-c", code], check=True)
