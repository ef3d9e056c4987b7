"""The part of the CUDA runtime that the tests need, by ctypes: arrays on a GPU without torch."""

import ctypes
import math
from collections.abc import Sequence

from provider import Array

_runtime = None


def load() -> ctypes.CDLL | None:
    """Returns the runtime if there is one, and a GPU."""
    global _runtime
    for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12"):
        try:
            runtime = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int()
        if runtime.cudaGetDeviceCount(ctypes.byref(count)) == 0 and count.value > 0:
            _runtime = runtime
    return _runtime


def call(name: str, *arguments: object) -> None:
    """Makes a call of the runtime. Raises RuntimeError with its number when it fails."""
    error = getattr(_runtime, name)(*arguments)
    if error != 0:
        raise RuntimeError(f"{name}: {error}")


class GpuArray(Array):
    """An array of float32 on a GPU, from a host array or empty."""

    def __init__(self, shape: Sequence[int], source: Array | None = None) -> None:
        super().__init__(shape, device=(2, 0))
        pointer = ctypes.c_void_p()
        call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(4 * math.prod(shape)))
        self.address = pointer.value or 0
        if source is not None:
            self.fill(source)

    def fill(self, source: Array) -> None:
        size = ctypes.c_size_t(4 * math.prod(self.shape))
        call("cudaMemcpy", ctypes.c_void_p(self.address), source.memory, size, 1)

    def host(self) -> list[float]:
        size = ctypes.c_size_t(4 * math.prod(self.shape))
        call("cudaMemcpy", self.memory, ctypes.c_void_p(self.address), size, 2)
        return list(self.memory)[: math.prod(self.shape)]


class Stream:
    """A stream of the runtime's, with capture."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        call("cudaStreamCreate", ctypes.byref(self.handle))
        self.cuda_stream = self.handle.value  # as torch's streams have it

    def begin_capture(self) -> None:
        call("cudaStreamBeginCapture", self.handle, 1)

    def end_capture(self) -> ctypes.c_void_p:
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        call("cudaStreamEndCapture", self.handle, ctypes.byref(graph))
        call("cudaGraphInstantiate", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        return ready

    def launch(self, graph: ctypes.c_void_p) -> None:
        call("cudaGraphLaunch", graph, self.handle)

    def synchronize(self) -> None:
        call("cudaStreamSynchronize", self.handle)
