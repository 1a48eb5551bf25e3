"""The store that processes and hosts share: Redis or Valkey.

`script` is what is sent, `batch` how it travels, `route` where to, `breaker` whether at all; all of
them are pure. `sync` and `aio` do the I/O, through a lane for each server.
"""
