"""Envoy's rate limit service, version 3: what envoyproxy/ratelimit answers, by the rules of limen.

`schema` has the messages, `question` understands them, `answer` makes others of what was decided,
`service` does both around one decision, and `grpc` lets Envoy in.
"""
