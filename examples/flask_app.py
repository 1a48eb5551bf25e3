"""Flask: limits of the application, of a view, of wrong passwords alone; and a refusal of its own.

    flask --app examples/flask_app.py run
    curl -i "localhost:5000/search?q=limen"
    curl -i localhost:5000/login -d password=guess

REDIS_URL=redis://localhost:6379 lets any number of processes share the limits.
"""

import os

from flask import Flask, Response, abort, request
from flask.typing import ResponseReturnValue

from limen import Limiter
from limen.adapters.flask import RateLimits, Refused

app = Flask(__name__)
limiter = Limiter(os.environ.get("REDIS_URL", "memory://"))
# For everybody, by address, over the whole application.
limits = RateLimits(limiter, "100/minute", app=app)


def is_failed(response: Response) -> bool:
    return response.status_code == 401


@app.get("/")
def home() -> str:
    return "hello\n"


@app.get("/search")
@limits.limit("5/minute")
def search() -> dict[str, str]:
    return {"found": request.args.get("q", "")}


@app.post("/login")
@limits.limit("3/minute", deduct_when=is_failed)  # right ones cost nothing
def login() -> str:
    if request.form.get("password") != "correct horse":
        abort(401)
    return "welcome\n"


@app.get("/healthz")
@limits.exempt
def healthz() -> str:
    return "ok\n"


@app.errorhandler(429)
def too_many(error: Refused) -> ResponseReturnValue:
    if request.path == "/login":
        return f"too many wrong passwords; come back in {error.retry_after} s\n", 429
    return error  # as limen says it
