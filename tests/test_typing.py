"""The public names are fully typed, as a strict type checker of a user sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def test_pyright_finds_every_public_type_complete() -> None:
    # Not left to pyright to find out: it does not follow an editable install.
    paths = [str(Path(__file__).parents[1] / "src"), sysconfig.get_path("purelib")]
    pyright = Path(sys.executable).with_name("pyright")
    checked = subprocess.run(
        [pyright, "--verifytypes", "limen", "--ignoreexternal"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Type completeness score: 100%" in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 0
