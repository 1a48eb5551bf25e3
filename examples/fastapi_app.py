"""FastAPI: limits of the application, of a router, of an endpoint, and of failed logins.

    uvicorn examples.fastapi_app:app
    curl -i localhost:8000/search?q=limen
    curl -i localhost:8000/login -d ''

REDIS_URL=redis://localhost:6379 lets any number of processes share the limits. What clients may do
is described at /docs.
"""

import os
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Response

from limen import AsyncLimiter, Concurrency
from limen.adapters import Passage
from limen.adapters.fastapi import RESPONSES, RateLimit, install

limiter = AsyncLimiter(os.environ.get("REDIS_URL", "memory://"))
app = FastAPI(title="limits", responses=RESPONSES)
# For everybody, by address, over the whole application.
install(app, limiter, "100/minute", expose=True)

reports = APIRouter(
    prefix="/reports",
    # One count for all of them, and never more than two at a time.
    dependencies=[Depends(RateLimit("20/hour", Concurrency(2, lease=60), scope="reports"))],
)


def is_failed(response: Any) -> bool:
    return bool(response.status == 401)


@app.get("/search", dependencies=[Depends(RateLimit("3/minute"))])
async def search(q: str) -> dict[str, str]:
    return {"found": q}


@app.post("/login", dependencies=[Depends(RateLimit("5/minute", deduct_when=is_failed))])
async def login(response: Response, password: str = "") -> dict[str, bool]:
    welcome = password == "open sesame"
    response.status_code = 200 if welcome else 401
    return {"welcome": welcome}


@app.get("/complete")
async def complete(
    passage: Annotated[Passage, Depends(RateLimit("1000/day", key="everyone", cost=10))],
    words: int = 50,
) -> dict[str, int]:
    # Ten were charged to begin with; this is what it was.
    passage.costs(words)
    return {"words": words}


@reports.get("/{number}")
async def report(number: int) -> dict[str, int]:
    return {"report": number}


app.include_router(reports, prefix="/v1")
