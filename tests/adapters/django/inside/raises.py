"""A module that cannot be imported."""

raise LookupError("secret")
