"""What needs no socket: run by a pytest of its own, whose process is Django's.

Django's settings are one for a process, and every other test of limen shares this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.django.sites import PROJECT
from tests.client.services import ROOT

INSIDE = Path(__file__).parent / "inside"


def test_all_that_is_checked_inside_a_process_of_django(store: str) -> None:
    # A plugin, and no conftest.py: this process would read that too, and become Django's.
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.adapters.django.inside.plugin"]
    options += ["-o", "python_files=check_*.py"]
    done = run("-m", "pytest", *options, str(INSIDE), STORE=store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout), done.stdout


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_manage_py_check_shows_what_is_wrong() -> None:
    limen = '{"LIMITS": ["10/fortnight"], "HEADRES": []}'
    done = run("-m", f"{PROJECT}.manage", "check", LIMEN_IN_TESTS=limen)
    assert done.returncode == 1
    assert "(limen.E002) LIMEN has no key 'HEADRES' (did you mean 'HEADERS'?)" in done.stderr
    assert "(limen.E004) LIMEN['LIMITS']: " in done.stderr
    assert "HINT: " in done.stderr


def test_manage_py_check_is_content_with_the_project() -> None:
    done = run("-W", "error", "-m", f"{PROJECT}.manage", "check", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "blocked", "extra"),
    [
        ("limen.adapters.django", "django", "django"),
        ("limen.adapters.django.rest", "rest_framework", "drf"),
    ],
)
def test_a_framework_that_is_missing_is_named_with_its_extra(
    module: str, blocked: str, extra: str
) -> None:
    done = run("-c", f"import sys; sys.modules[{blocked!r}] = None\nimport {module}")
    assert done.returncode == 1
    assert f"run: pip install 'limen[{extra}]'" in done.stderr.splitlines()[-1]
    assert "During handling" not in done.stderr
