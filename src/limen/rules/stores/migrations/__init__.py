"""How the tables of rules came to be: one file for each step, run by `migrate`."""
