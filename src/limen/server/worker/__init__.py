"""Everything that one worker holds: data folder, rules, limiter, thread pools, audit queue."""
