"""Each module needs its own library alone, and names the extra that has it."""

from __future__ import annotations

import subprocess
import sys

import pytest


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
