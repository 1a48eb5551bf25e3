"""The decision API, `/v1`: parse a request, decide it, encode the verdict. Knows no sockets."""
