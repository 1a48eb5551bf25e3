"""Asks a limen elsewhere."""
