"""Measures limen beside its peers. `python -m bench` prints the tables of README.md."""
