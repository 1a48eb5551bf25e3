"""Authentication: tokens with their roles, and session cookies. Knows nothing of routes."""
