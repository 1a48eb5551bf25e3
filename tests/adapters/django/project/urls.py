from __future__ import annotations

from django.conf.urls.i18n import i18n_patterns
from django.urls import include, path

from limen.adapters.django import ratelimit
from tests.adapters.django.project import views, whom

plain = views.plain

urlpatterns = [
    path("plain/", plain, name="plain"),
    path("everywhere/plain/", plain),
    path("everywhere/health/", views.health),
    path("everywhere/limited/", ratelimit("2/day")(plain)),
    path("login/<int:number>/", views.log_in),
    path("users/<int:id>/", views.by_address, name="user"),
    path("async/users/<int:id>/", views.by_address_async, name="user-async"),
    path("again/", views.by_address),
    path("app/", include([path("users/<int:id>/", views.by_address, name="user-of-app")])),
    path("classy/", views.Classy.as_view()),
    path("classy-async/", views.ClassyAsync.as_view()),
    path("soon/", ratelimit("1/second")(plain)),
    path("two/", ratelimit("3/hour", "5/day")(plain)),
    path("stacked/", ratelimit("3/hour")(ratelimit("5/day", key="everyone")(plain))),
    path("cost/", ratelimit("10/day", cost=4)(plain)),
    path("cost-of/", ratelimit("10/day", cost=views.of_cost)(plain)),
    path("but-staff/", ratelimit("1/day", exempt_when=whom.is_staff)(plain)),
    path("sign-in/", views.sign_in),
    path("settled/", views.settled),
    path("costly/", views.costly),
    path("release/<name>/", views.release),
    path("streamed/", views.streamed),
    path("streamed-async/", views.streamed_async),
    path("endless/", views.endless_async),
    path("slow/", views.slow_async),
    path("fails/", views.fails),
    path("by-user/", ratelimit("2/day", key="user")(plain)),
    path("by-user-async/", views.by_user_async),
    path("by-user-or-ip/", ratelimit("2/day", key="user_or_ip")(plain)),
    path("by-name/", views.by_name),
    path("by-header/", ratelimit("2/day", key="header:X-Api-Key")(plain)),
    path("by-route/<int:id>/", ratelimit("2/day", key="route")(plain)),
    path("by-tenant/", ratelimit("2/day", key=whom.tenant_of, missing="skip")(plain)),
    path("hidden/", ratelimit("2/day", key=whom.hidden)(plain)),
    path("broken/", ratelimit("2/day", key=whom.broken)(plain)),
    path("broken-skip/", ratelimit("2/day", key=whom.broken, missing="skip")(plain)),
    path("broken-deny/", ratelimit("2/day", key=whom.broken, missing="deny")(plain)),
    path("number/", ratelimit("2/day", key=whom.number)(plain)),
    path("nobody/", ratelimit("2/day", key=whom.nobody)(plain)),
    path("api/", views.Api.as_view()),
    path("other-api/", views.OtherApi.as_view()),
    path("two-throttles/", views.TwoThrottles.as_view()),
    path("user-api/", views.UserApi.as_view()),
    path("scoped/", views.Scoped.as_view()),
    path("uploads/", views.Uploads.as_view()),
    path("unscoped/", views.Unscoped.as_view()),
    path("posting/", views.PostingApi.as_view()),
]
urlpatterns += i18n_patterns(path("translated/", ratelimit("2/day")(plain)))
