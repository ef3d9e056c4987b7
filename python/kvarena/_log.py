"""Lines of the library in Python.

The library logs under locks, on any thread. Its lines wait in a queue of 4,096 places, and one thread of
Python takes them out; lines that find the queue full are counted, and one line says how many are missing.
"""

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Final

from kvarena import _core

LEVELS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_PYTHON_LEVELS: Final = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)

LineFunction = Callable[[str, str], None]
ViolationFunction = Callable[[str, str], None]
ReasonFunction = Callable[[str, str], None]
PressureFunction = Callable[[str, int, int, str], None]

_lock = threading.Lock()
_reader: threading.Thread | None = None
_level = 5
_on_line: LineFunction | None = None
_on_violation: ViolationFunction | None = None
_listeners: dict[int, tuple[ReasonFunction | None, PressureFunction | None]] = {}
_listeners_ever = 0


def _require_function(argument: str, function: object) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{argument}: {function!r}; accepted: None or a function")


def to_logging(level: str, line: str) -> None:
    """Hands a line to the logger "kvarena" of Python's logging."""
    logging.getLogger("kvarena").log(_PYTHON_LEVELS[LEVELS[level]], "%s", line)


def set_log(function: LineFunction | None = to_logging, level: str = "info") -> None:
    """Sends log lines of `level` and above to function(level, line), on a thread of their own.

    Without arguments they go to the logger "kvarena" of Python's logging. None silences the library, as
    it is at first.
    """
    global _level, _on_line
    _require_function("function", function)
    if level not in LEVELS:
        raise ValueError(f"level: {level!r}; accepted: {', '.join(map(repr, LEVELS))}")
    with _lock:
        _on_line = function
        _level = 5 if function is None else LEVELS[level]
        _apply()


def on_violation(function: ViolationFunction | None) -> None:
    """Sends programmer errors to function(what, object), on a thread of their own.

    `object` is the name of the cache or pool. None: they are logged at level critical, as at first.
    """
    global _on_violation
    _require_function("function", function)
    with _lock:
        _on_violation = function
        _apply()


def add_listener(reason: ReasonFunction | None, pressure: PressureFunction | None) -> int:
    """Registers the functions of a monitor and returns its number, or 0 without functions."""
    global _listeners_ever
    _require_function("on_unhealthy", reason)
    _require_function("on_pressure", pressure)
    if reason is None and pressure is None:
        return 0
    with _lock:
        _listeners_ever += 1
        _listeners[_listeners_ever] = (reason, pressure)
        _apply()
        return _listeners_ever


def remove_listener(number: int) -> None:
    """Forgets the functions of a monitor."""
    with _lock:
        _listeners.pop(number, None)


def _apply() -> None:
    global _reader
    _core.open_lines(_level, _on_violation is not None)
    if _reader is None:
        _reader = threading.Thread(target=_read, name="kvarena-log", daemon=True)
        _reader.start()


def _read() -> None:
    while (taken := _core.take_lines()) is not None:
        lines, dropped = taken
        for kind, level, text, name, target in lines:
            try:
                _hand_on(kind, level, text, name, target)
            except Exception:  # a function of the user; the next line must still come
                logging.getLogger("kvarena").exception("a function that takes %s lines", kind)
        if dropped and _on_line is not None:
            _on_line("warning", f"{dropped} log lines were dropped: the queue was full")


def _hand_on(kind: str, level: int, text: str, name: str, target: int) -> None:
    reason, pressure = _listeners.get(target, (None, None))
    if kind == "log" and _on_line is not None:
        _on_line(tuple(LEVELS)[level], text)
    elif kind == "violation" and _on_violation is not None:
        _on_violation(text, name)
    elif kind == "unhealthy" and reason is not None:
        reason(name, text)
    elif kind == "pressure" and pressure is not None:
        pressure(name, level // 16, level % 16, text)


@atexit.register
def _stop() -> None:
    """Ends the thread before the interpreter ends."""
    global _reader
    reader, _reader = _reader, None
    if reader is not None:
        _core.close_lines()
        reader.join(timeout=5)
