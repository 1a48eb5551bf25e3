"""gRPC over HTTP/2, as far as a service of small messages needs it, on the loop of a worker.

`frames`, `calls` and `bounds` are pure: bytes to meaning and back, and how much of them. A
`connection` reads the frames of one client, has its calls in `streams`, and answers by `sending`.
`services` has health and reflection, which every gRPC server offers.
Knows nothing of limits on requests.
"""
