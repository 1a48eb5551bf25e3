"""Rules: the language, how they are matched, and where they are kept. Knows no limiter."""
