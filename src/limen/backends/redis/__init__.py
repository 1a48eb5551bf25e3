"""The store that processes and hosts share: Redis or Valkey.

This version has the script that decides, held equal to the pure form by tests. The drivers that
send it come next; until then no limiter uses this package.
"""
