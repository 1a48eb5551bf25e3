"""Mutants: the code that decides, made wrong on purpose, one place at a time.

`list` has the mutants, and which tests must notice each. `python -m tests.mutants` makes them, one
after the other, in a copy of the tree, and says of each whether a test failed.
"""
