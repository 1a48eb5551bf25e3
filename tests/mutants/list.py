"""All mutants: a comparison flipped, a clamp or a TTL left out, a microsecond too many.

Each is a mistake that could be made. What would change no answer is none, and not in here.
"""

from __future__ import annotations

from tests.mutants.lua import IN_LUA
from tests.mutants.mutant import Mutant
from tests.mutants.python import IN_PYTHON
from tests.mutants.service import IN_SERVICE
from tests.mutants.store import IN_STORE

MUTANTS: tuple[Mutant, ...] = (*IN_LUA, *IN_PYTHON, *IN_STORE, *IN_SERVICE)
