"""From a ready redis-py client to a `Target`. The client's own connections are left alone."""

from __future__ import annotations

from typing import Any

from limen.connect.address import MAX_CONNECTIONS, Address, Target, parse, show_address
from limen.errors import ConfigurationError

_KEPT = ("client_name", "credential_provider", "db", "password", "socket_keepalive", "username")


def target_of(store: object, *, asynchronous: bool) -> Target:
    """Return where a store is, from its address or from a client of the right kind."""
    _need_redis()
    if isinstance(store, str):
        return parse(store)
    import redis
    import redis.asyncio

    ours, other = (redis.asyncio, redis) if asynchronous else (redis, redis.asyncio)
    if isinstance(store, ours.Redis):
        return _of_pool(store.connection_pool)
    if isinstance(store, ours.RedisCluster):
        return _of_cluster(store)
    name = "redis.asyncio" if asynchronous else "redis"
    if isinstance(store, other.Redis | other.RedisCluster):
        limiter = "AsyncLimiter" if not asynchronous else "Limiter"
        raise ConfigurationError(f"this client is for {limiter}; give a client of {name} here")
    raise ConfigurationError(
        "store must be an address such as 'redis://localhost:6379', or a Redis or RedisCluster "
        f"of {name}, got a {type(store).__name__}"
    )


def _need_redis() -> None:
    try:
        import hiredis  # noqa: F401
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"a store on Redis needs the package {error.name}; run: pip install 'limen[redis]'"
        ) from None


def _of_pool(pool: Any) -> Target:
    settings = pool.connection_kwargs
    options = _options(settings)
    tls = "SSL" in pool.connection_class.__name__
    max_connections = min(pool.max_connections, MAX_CONNECTIONS)
    if hasattr(pool, "sentinel_manager"):
        sentinels = [
            one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels
        ]
        addresses = tuple([_address(each) for each in sentinels])
        where = ",".join(map(show_address, addresses))
        shown = f"sentinels {where}, service {pool.service_name}"
        service = str(pool.service_name)
        return Target(
            "sentinel",
            addresses,
            shown,
            options,
            tls,
            service,
            _options(sentinels[0]),
            max_connections,
        )
    address = _address(settings)
    return Target(
        "single", (address,), show_address(address), options, tls, max_connections=max_connections
    )


def _of_cluster(client: Any) -> Target:
    settings = client.get_connection_kwargs()
    nodes = client.nodes_manager.startup_nodes.values()
    addresses = tuple([(str(node.host), int(node.port)) for node in nodes])
    made_by = getattr(settings.get("connection_class"), "__name__", "")
    tls = bool(settings.get("ssl")) or "SSL" in made_by
    shown = f"cluster {','.join(map(show_address, addresses))}"
    return Target("cluster", addresses, shown, _options(settings), tls)


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """Keep who one is and whom one trusts. Timeouts, retries, decoding: a limiter has its own."""
    return {
        name: value
        for name, value in settings.items()
        if (name in _KEPT or name.startswith("ssl_")) and value is not None
    }


def _address(settings: dict[str, Any]) -> Address:
    if "path" in settings:
        return str(settings["path"]), 0
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))
