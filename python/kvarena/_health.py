"""A health monitor with its HTTP server, as a context manager."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from kvarena import _core, _log
from kvarena._options import MonitorOptions


class HealthServer:
    """Watches caches and their devices, and serves /health, /stats and /metrics. Makes one check itself.

    `on_unhealthy(code, text)` and `on_pressure(name, from, to, text)` are called on the thread of log
    lines; pressure is 0 normal, 1 elevated, 2 critical, 3 exhausted.
    """

    def __init__(
        self,
        *caches: _core.Cache,
        port: int = 0,
        address: str | None = None,
        token: str | None = None,
        options: MonitorOptions | None = None,
        on_unhealthy: _log.ReasonFunction | None = None,
        on_pressure: _log.PressureFunction | None = None,
    ) -> None:
        chosen = replace(
            options or MonitorOptions(),
            serve_http=True,
            http_port=port,
            http_address=address,
            http_token=token,
        )
        self._listener = _log.add_listener(on_unhealthy, on_pressure)
        try:
            self.monitor = _core.Monitor(chosen, self._listener)
            for number, cache in enumerate(caches):
                self.monitor.watch(cache, cache.name or f"cache {number}")
            self.monitor.check()  # else /health answers 503 until the monitor's thread has looked
        except BaseException:
            _log.remove_listener(self._listener)
            raise
        self.url = f"http://{address or '127.0.0.1'}:{self.monitor.port}"

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops server and monitor. Calls that are under way end first."""
        self.monitor.close()
        _log.remove_listener(self._listener)
