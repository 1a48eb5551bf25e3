"""Django in one file: limits of the project, of a view, of failed logins, and what a request cost.

    python examples/django_app.py runserver
    curl -i localhost:8000/search?q=limen
    curl -i localhost:8000/login -d password=guess

By ASGI: uvicorn examples.django_app:app. REDIS_URL=redis://localhost:6379 lets any number of
processes share the limits.
"""

import os
import sys

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from limen import Concurrency
from limen.adapters.django import exempt, ratelimit, visit_of

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    INSTALLED_APPS=["limen.adapters.django"],  # for `check`, which says what is wrong with LIMEN
    MIDDLEWARE=["limen.adapters.django.RateLimitMiddleware"],
    LIMEN={
        "STORE": os.environ.get("REDIS_URL", "memory://"),
        "LIMITS": ["100/minute"],  # for everybody, by address, over the whole project
        "EXPOSE": True,
    },
)
django.setup()


@ratelimit("3/minute")
def search(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"found": request.GET.get("q", "")})


@ratelimit("5/minute", deduct_when=lambda response: response.status_code == 401)
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=200 if request.POST.get("password") == "open sesame" else 401)


@ratelimit("1000/day", Concurrency(2, lease=60), cost=10)
async def complete(request: HttpRequest) -> JsonResponse:
    words = int(request.GET.get("words", "7"))
    visit_of(request).costs(words)  # 10 was only what it might cost
    return JsonResponse({"words": words})


@exempt
def healthy(request: HttpRequest) -> HttpResponse:
    return HttpResponse("healthy")


urlpatterns = [
    path("search", search),
    path("login", login),
    path("complete", complete),
    path("healthz", healthy),
]

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
else:
    from django.core.asgi import get_asgi_application

    app = get_asgi_application()
