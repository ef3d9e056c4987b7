"""Arrays with DLPack and nothing else: what the core is tested with, without torch and numpy."""

import ctypes
import math
import random
from collections.abc import Sequence


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", _Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

TYPES = {
    "float32": (2, 32, ctypes.c_float),
    "float64": (2, 64, ctypes.c_double),
    "int32": (0, 32, ctypes.c_int32),
    "int64": (0, 64, ctypes.c_int64),
}

#: Exports whose consumer has not called the deleter yet.
alive: dict[int, tuple[_Managed, object]] = {}


@_Deleter
def _delete(managed: ctypes._Pointer) -> None:
    alive.pop(ctypes.addressof(managed.contents))


class Array:
    """A dense or strided array of ctypes, exported by DLPack."""

    def __init__(
        self,
        shape: Sequence[int],
        values: Sequence[float] | None = None,
        dtype: str = "float32",
        strides: Sequence[int] | None = None,
        device: tuple[int, int] = (1, 0),
    ) -> None:
        self.shape, self.strides, self.device = tuple(shape), strides, device
        self.code, self.bits, element = TYPES[dtype]
        count = math.prod(shape)
        if strides is not None:
            count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        self.memory = (element * max(count, 1))(*(values or []))
        self.address = ctypes.addressof(self.memory)

    @classmethod
    def random(cls, shape: Sequence[int], seed: int) -> "Array":
        numbers = random.Random(seed)
        return cls(shape, [numbers.uniform(-1, 1) for _ in range(math.prod(shape))])

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None) -> object:
        n = len(self.shape)
        shape = (ctypes.c_int64 * n)(*self.shape)
        strides = (ctypes.c_int64 * n)(*self.strides) if self.strides is not None else None
        managed = _Managed(
            _Tensor(
                self.address,
                _Device(*self.device),
                n,
                _Type(self.code, self.bits, 1),
                shape,
                strides,
                0,
            ),
            None,
            _delete,
        )
        alive[ctypes.addressof(managed)] = (managed, (self, shape, strides))
        return _new_capsule(ctypes.addressof(managed), b"dltensor", None)

    def rows(self) -> list[list[list[float]]]:
        """[n, heads, dim] as nested lists."""
        n, heads, dim = self.shape
        flat = list(self.memory)
        return [
            [flat[(i * heads + h) * dim : (i * heads + h + 1) * dim] for h in range(heads)]
            for i in range(n)
        ]


class ReadOnly:
    """The memory of an array, exported by DLPack 1.0 as read-only."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * len(array.shape))(*array.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.device

    def __dlpack__(self, *, max_version: tuple[int, int], stream: int | None = None) -> object:
        of = self.array
        dtype = _Type(of.code, of.bits, 1)
        tensor = _Tensor(of.address, _Device(*of.device), len(of.shape), dtype, self.shape, None, 0)
        self.exported = _Versioned(_Version(1, 0), None, None, 1, tensor)
        return _new_capsule(ctypes.addressof(self.exported), b"dltensor_versioned", None)


def described(array: object) -> tuple[list[int], list[int], int]:
    """Shape, strides in elements and address of what another library exports."""
    capsule = array.__dlpack__()
    managed = _Managed.from_address(_capsule_pointer(capsule, b"dltensor"))
    tensor, n = managed.tensor, managed.tensor.ndim
    shape = list(tensor.shape[:n])
    strides = [math.prod(shape[i + 1 :]) for i in range(n)]
    if tensor.strides:
        strides = list(tensor.strides[:n])
    return shape, strides, tensor.data + tensor.byte_offset


def attention(q: list, k: list, v: list) -> list:
    """Causal attention of the last len(q) tokens, in plain Python: [n, heads, dim]."""
    first = len(k) - len(q)
    group = len(q[0]) // len(k[0])
    result = []
    for i, token in enumerate(q):
        heads = []
        for h, query in enumerate(token):
            kv = h // group
            seen = range(first + i + 1)
            logits = [
                sum(a * b for a, b in zip(query, k[j][kv], strict=True)) / math.sqrt(len(query))
                for j in seen
            ]
            most = max(logits)
            weights = [math.exp(x - most) for x in logits]
            total = sum(weights)
            heads.append(
                [
                    sum(w * v[j][kv][d] for w, j in zip(weights, seen, strict=True)) / total
                    for d in range(len(v[0][kv]))
                ]
            )
        result.append(heads)
    return result
