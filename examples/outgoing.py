"""Call somebody else's API as often as it allows, and no more often.

Here a small server stands in for it: 5 requests a second, and a 429 for who sends more.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from limen import Limit, Limiter
from limen.adapters.httpx import RateLimited, RateLimitTransport
from limen.http import answer_of, headers


class Api(BaseHTTPRequestHandler):
    limiter = Limiter()
    # Half of the second that it tells its users: requests need some time for the way.
    limit = Limit(5, 0.5)

    def do_GET(self) -> None:
        decision = self.limiter.check("everyone", self.limit)
        self.send_response(200 if decision.allowed else 429)
        for name, value in headers(answer_of(decision)):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def call_many(url: str, limiter: Limiter) -> None:
    # Twelve at once: five are sent now, five in a second, two in two seconds.
    with (
        httpx.Client(transport=RateLimitTransport(limiter, "5/second")) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        began = time.monotonic()
        responses = list(pool.map(client.get, [url] * 12))
        took = round(time.monotonic() - began)
    statuses = Counter(response.status_code for response in responses)
    print(f"{statuses[200]} answers in about {took} s, {statuses[429]} refused by the API")


def call_without_waiting(url: str, limiter: Limiter) -> None:
    with httpx.Client(transport=RateLimitTransport(limiter, "1/hour", wait=0)) as client:
        client.get(url)
        try:
            client.get(url)
        except RateLimited as error:  # an httpx.TransportError, and a LimenError
            print(error)


def call_and_learn(url: str, limiter: Limiter) -> None:
    # It knows no limits, and does what the API says: after a 429, nothing is sent for a while.
    with httpx.Client(transport=RateLimitTransport(limiter)) as client:
        answers = 0
        while answers < 7:
            answers += client.get(url).status_code == 200
    print(f"{answers} answers by listening to the API")


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server, Limiter() as limiter:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            call_many(url, limiter)
            call_without_waiting(url, limiter)
            call_and_learn(url, limiter)
        finally:
            server.shutdown()
            thread.join()


main()
