"""Chance, for waits and orders that should not be the same everywhere."""

from __future__ import annotations

from random import SystemRandom

# Not the generator that the modules share: a program may have seeded it, and counts on what it
# draws. Nor one of our own, which a fork would copy: then all workers came back at once.
CHANCE = SystemRandom()
