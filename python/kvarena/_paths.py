"""Where the C library and its header are, for programs that are compiled against them."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def include_dir() -> Path:
    """Returns the folder for the compiler's -I: it contains kvarena/kvarena.h."""
    return _PACKAGE / "include"


def library_path() -> Path:
    """Returns the C library."""
    return _PACKAGE / "lib" / "libkvarena.so.0"
