"""Shared by the tests: a small cache on the host."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvarena

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make_cache() -> Iterator[Callable[..., kvarena.Cache]]:
    """Makes caches of 2 layers, 4 query heads on 2 KV heads, head_dim 16, blocks of 4 tokens."""
    made = []

    def make(device: kvarena.Device | None = None, **options: object) -> kvarena.Cache:
        chosen = {
            "num_layers": 2,
            "num_kv_heads": 2,
            "head_dim": 16,
            "num_q_heads": 4,
            "dtype": "f32",
            "block_size": 4,
            "num_blocks": 16,
            "max_sequences": 8,
            "num_threads": 1,
        } | options
        made.append(kvarena.Cache(device or kvarena.Device(), kvarena.CacheOptions(**chosen)))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


@pytest.fixture
def cache(make_cache: Callable[..., kvarena.Cache]) -> kvarena.Cache:
    return make_cache()
