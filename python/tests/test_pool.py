"""Pools and kernels: for engines with block tables of their own."""

import resource

import pytest
from provider import Array, ReadOnly, attention

import kvarena

SHAPE = {"num_kv_heads": 2, "head_dim": 16, "block_size": 4, "dtype": "f32"}


@pytest.fixture
def pool():
    made = kvarena.Pool(8, name="engine")
    yield made
    made.check()
    made.close()


def test_blocks_are_taken_shared_and_given_back(pool):
    first, second = pool.open_holder(owner=7, purpose="request"), pool.open_holder()
    taken = pool.allocate(first, 3)
    assert taken == ([0, 1, 2], [0, 0, 0], 0)
    pool.retain(second, taken.blocks[:1], taken.generations[:1])
    assert pool.holder(first)[2:5] == (7, "request", 3)
    assert [report.references for report in pool.holders()] == [3, 1]
    pool.free(first, taken.blocks, taken.generations)
    assert (pool.stats().free, pool.stats().referenced) == (7, 1)
    assert pool.block(0) == (0, 1, 1, "referenced", "unwritten", 35, 0)
    with pytest.raises(kvarena.FailedPrecondition):
        pool.close_holder(second)
    pool.free(second, [0], [0])
    pool.close_holder(second)
    with pytest.raises(kvarena.NotFound):
        pool.holder(second)


def test_published_blocks_are_evicted_the_oldest_first(pool):
    holder = pool.open_holder()
    taken = pool.allocate(holder, 8)
    for block in (2, 5):
        pool.set_content(block, 0, "published")
    pool.free(holder, taken.blocks, taken.generations)
    assert (pool.stats().evictable, pool.available(), pool.can_allocate(8)) == (2, 8, True)
    assert pool.allocate(holder, 7).evicted == 1
    pool.retain(holder, [5], [0])  # comes back to life
    assert pool.stats().free == pool.stats().evictable == 0


def test_exhaustion_is_explained_and_changes_nothing(pool):
    big, small = pool.open_holder(purpose="big"), pool.open_holder(purpose="small")
    pool.allocate(big, 6)
    with pytest.raises(kvarena.Exhausted) as caught:
        pool.allocate_each([(big, 1), (small, 2)])
    assert (caught.value.required, caught.value.available) == (3, 2)
    assert caught.value.explanation.largest[0].purpose == "big"
    assert pool.stats().free == 2 and pool.explain(3).missing == 1
    assert "big" in pool.explain_text(3) and '"missing":1' in pool.explain_json(3).replace(" ", "")


def test_many_holders_are_served_in_one_call(pool):
    holders = [pool.open_holder() for _ in range(3)]
    taken = pool.allocate_each([(holders[0], 2), (holders[1], 1), (holders[2], 3)])
    assert len(taken.blocks) == 6
    assert [pool.holder(h).references for h in holders] == [2, 1, 3]


def test_tickets_reservations_and_quarantine(pool):
    holder = pool.open_holder()
    taken = pool.allocate(holder, 2)
    ticket = pool.open_ticket()
    pool.free(holder, taken.blocks, taken.generations, ticket=ticket)
    assert (pool.stats().fenced, pool.available(), pool.available(ticket)) == (2, 6, 8)
    assert pool.is_open(ticket)
    pool.retire(ticket)
    assert not pool.is_open(ticket) and pool.stats().fenced == 0
    other = pool.open_holder()
    pool.reserve(other, 7)
    with pytest.raises(kvarena.Exhausted):
        pool.allocate(holder, 2)
    pool.reserve(other, 0)
    assert pool.quarantine(3) and pool.stats().offline == 1
    pool.restore(3)
    assert pool.stats().offline == 0


def test_operations_are_heard_in_their_order():
    heard = []
    pool = kvarena.Pool(4, log=heard.append)
    holder = pool.open_holder()
    pool.free(holder, *pool.allocate(holder, 2)[:2])
    assert [op.kind for op in heard] == ["register_holder", "allocate", "release"]
    assert heard[1].blocks == (0, 1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p, h: p.free(h, [0], []), ValueError, "generations: 0 entries; accepted: 1"),
        (lambda p, h: p.free(h, [0], [9]), kvarena.StaleHandle, ""),
        (lambda p, h: p.allocate(h, 1, urgency="soon"), ValueError, 'urgency: "soon"'),
        (lambda p, h: p.set_content(0, 0, "new"), ValueError, 'content: "new"; accepted: "unw'),
        (lambda p, h: p.allocate(h + 99), kvarena.NotFound, ""),
        (lambda p, h: p.retire(12345), kvarena.NotFound, ""),
        (lambda p, h: p.block(8), kvarena.NotFound, ""),
        (lambda p, h: p.allocate("x"), TypeError, ""),
    ],
)
def test_bad_calls_of_a_pool_are_refused(pool, call, error, words):
    holder = pool.open_holder()
    pool.allocate(holder, 1)
    before = pool.stats()
    with pytest.raises(error) as caught:
        call(pool, holder)
    assert words in str(caught.value)
    assert pool.stats() == before


def test_a_closed_pool_and_bad_options_are_refused():
    with pytest.raises(kvarena.InvalidArgument):
        kvarena.Pool(0)
    pool = kvarena.Pool(1)
    pool.close()
    pool.close()
    with pytest.raises(kvarena.Error):
        pool.stats()


class Engine:
    """Two layers of a pool in the engine's own memory."""

    def __init__(self):
        self.device = kvarena.Device()
        options = kvarena.CacheOptions(num_layers=2, num_q_heads=4, num_blocks=8, **SHAPE)
        self.plan = kvarena.pool_plan(options)
        self.memory = Array([self.plan.pool_bytes // 4])
        self.layers = [
            kvarena.layer_view(self.device, options, self.memory, layer) for layer in (0, 1)
        ]
        self.kernels = kvarena.Kernels(
            self.device,
            kvarena.KernelsOptions(
                num_q_heads=4,
                max_rows=4,
                max_q_tokens=64,
                num_blocks=8,
                num_threads=1,
                window_tokens=3,
                **SHAPE,
            ),
        )
        # Rows of 6 and 3 tokens, in blocks 5, 2 and 7.
        self.tables = Array([2, 2], [5, 2, 7, -1], "int32")
        self.lengths = Array([2], [6, 3], "int32")
        self.q_offsets = Array([3], [0, 6, 9], "int64")
        self.slots = Array([9], [20, 21, 22, 23, 8, 9, 28, 29, 30], "int64")
        self.k, self.v = Array.random([9, 2, 16], 1), Array.random([9, 2, 16], 2)
        self.q = Array.random([9, 4, 16], 3)

    def schedule(self, **how):
        self.kernels.schedule(self.tables, self.lengths, self.q_offsets, query_tokens=[6, 3], **how)

    def run(self, layer=1, **how):
        self.schedule(windowed=how.get("windowed", False))
        self.kernels.write(self.layers[layer], self.slots, self.k, self.v)
        return self.kernels.attend(self.layers[layer], self.q, out=Array([9, 4, 16]), **how)


def test_kernels_attend_by_the_engines_own_tables():
    engine = Engine()
    out = engine.run().rows()
    q, k, v = (t.rows() for t in (engine.q, engine.k, engine.v))
    for first, last in [(0, 6), (6, 9)]:
        expected = attention(q[first:last], k[first:last], v[first:last])
        for token, wanted in zip(out[first:last], expected, strict=True):
            for head, numbers in zip(token, wanted, strict=True):
                assert head == pytest.approx(numbers, abs=1e-5)
    engine.kernels.check_tables()


def test_windowed_calls_have_a_schedule_of_their_own():
    engine = Engine()
    plain = engine.run().rows()
    windowed = engine.run(windowed=True).rows()
    assert windowed[:3] == plain[:3] and windowed[5] != plain[5]


def test_latents_have_v_in_k():
    torch = pytest.importorskip("torch")
    engine = Engine()
    shape = {**SHAPE, "num_kv_heads": 1, "head_dim_v": 12, "value_in_key": True}
    engine.kernels = kvarena.Kernels(
        engine.device,
        kvarena.KernelsOptions(
            num_q_heads=4, max_rows=4, max_q_tokens=64, num_blocks=8, num_threads=1, **shape
        ),
    )
    own = torch.full([8, 1, 4, 16], float("nan"))
    view = kvarena.LayerView(own, own[..., :12], "rows")
    latents = Array.random([9, 1, 16], 1)
    engine.schedule()
    with pytest.raises(ValueError, match="None: V of this layer lies in K"):
        engine.kernels.write(view, engine.slots, latents, latents)
    engine.kernels.write(view, engine.slots, latents, None)
    out = engine.kernels.attend(view, torch.from_dlpack(engine.q)).tolist()
    q, k = engine.q.rows(), latents.rows()
    for first, last in [(0, 6), (6, 9)]:
        values = [[head[:12] for head in token] for token in k[first:last]]
        expected = attention(q[first:last], k[first:last], values)
        for token, wanted in zip(out[first:last], expected, strict=True):
            for head, numbers in zip(token, wanted, strict=True):
                assert head == pytest.approx(numbers, abs=1e-5)


def test_a_pool_of_another_form_is_read_by_its_strides():
    """[num_blocks, block_size, heads, dim], as many engines have it."""
    torch = pytest.importorskip("torch")
    engine = Engine()
    expected = engine.run().rows()
    own = torch.full([2, 8, 4, 2, 16], float("nan"))
    view = kvarena.LayerView(own[0].transpose(1, 2), own[1].transpose(1, 2), "rows")
    engine.kernels.write(view, engine.slots, engine.k, engine.v)
    out = engine.kernels.attend(view, torch.from_dlpack(engine.q))
    assert out.tolist() == expected
    assert own[0, 5].tolist() == engine.k.rows()[:4]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda e: e.kernels.attend(e.layers[0], e.q, out=Array([9, 4, 16])),
            kvarena.FailedPrecondition,
            "",
        ),
        (
            lambda e: e.schedule(host_lengths=[6]),
            ValueError,
            "host_lengths: 1 entries",
        ),
        (
            lambda e: e.schedule(host_lengths=[6, -3]),
            ValueError,
            "host_lengths: -3",
        ),
        (
            lambda e: (e.schedule(), e.kernels.attend(e.layers[0], Array([8, 4, 16]))),
            ValueError,
            "q: shape",
        ),
        (
            lambda e: e.kernels.write(e.layers[0], Array([9], dtype="int32"), e.k, e.v),
            TypeError,
            "slots: elements of type int32",
        ),
        (
            lambda e: e.kernels.write(3, e.slots, e.k, e.v),
            TypeError,
            "layer_view: an object without .key",
        ),
        (
            lambda e: e.kernels.write(
                e.layers[0]._replace(tile_order="chunked"), e.slots, e.k, e.v
            ),
            ValueError,
            'layer_view.tile_order: "chunked"; accepted: "rows"',
        ),
        (
            lambda e: e.kernels.write(e.layers[0]._replace(key=e.k), e.slots, e.k, e.v),
            ValueError,
            "layer_view.key: shape",
        ),
        (
            lambda e: e.kernels.schedule(e.tables, e.lengths, e.q_offsets, query_tokens=[1]),
            ValueError,
            "query_tokens: 1 entries; accepted: one for each of the 2",
        ),
        (
            lambda e: e.kernels.schedule(e.slots, e.lengths, e.q_offsets),
            TypeError,
            "tables: elements",
        ),
        (
            lambda e: e.kernels.schedule(e.tables, e.lengths, e.lengths),
            TypeError,
            "q_offsets: elements",
        ),
        (
            lambda e: kvarena.layer_view(
                e.device,
                kvarena.CacheOptions(num_layers=2, num_q_heads=4, num_blocks=99, **SHAPE),
                e.memory,
                0,
            ),
            ValueError,
            "memory: ",
        ),
    ],
)
def test_bad_calls_of_kernels_are_refused(call, error, words):
    engine = Engine()
    with pytest.raises(error) as caught:
        call(engine)
    assert words in str(caught.value)


def test_read_only_memory_is_read_and_not_written():
    engine = Engine()
    expected = engine.run().rows()
    view = kvarena.LayerView(Array([8, 2, 4, 16]), Array([8, 2, 4, 16]), "rows")
    engine.schedule()
    engine.kernels.write(view, engine.slots, engine.k, engine.v)
    key, value = ReadOnly(view.key), ReadOnly(view.value)
    for changed, name in [({"key": key}, "key"), ({"value": value}, "value")]:
        with pytest.raises(ValueError, match=f"layer_view.{name}: a read-only"):
            engine.kernels.write(view._replace(**changed), engine.slots, engine.k, engine.v)
    out = Array([9, 4, 16])
    engine.kernels.attend(view._replace(key=key, value=value), engine.q, out=out)
    assert out.rows() == expected
    with pytest.raises(ValueError, match="tensor: a read-only"):
        engine.device.register(key)
    with pytest.raises(ValueError, match="memory: a read-only"):
        options = kvarena.CacheOptions(num_layers=2, num_q_heads=4, num_blocks=8, **SHAPE)
        kvarena.layer_view(engine.device, options, ReadOnly(engine.memory), 0)


def test_a_huge_allocation_is_refused_without_memory_for_it(pool):
    holder = pool.open_holder()
    pool.allocate(holder, 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = 2**31 - 1
    for call in (
        lambda count: pool.allocate(holder, count),
        lambda count: pool.allocate_each([(holder, count)]),
    ):
        with pytest.raises(kvarena.Exhausted) as caught:
            call(most)
        assert (caught.value.required, caught.value.available) == (most, 5)
        with pytest.raises(kvarena.InvalidArgument, match=f"got {most + 1}, expected 0 to {most}"):
            call(most + 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    assert pool.stats().free == 5


@pytest.mark.parametrize("with_offsets", [False, True])
def test_row_slots_name_the_tables_on_the_host(with_offsets):
    engine = Engine()
    expected = engine.run().rows()
    engine.tables = Array([3, 2], [7, -1, 0, 0, 5, 2], "int32")
    slots = Array([2], [2, 0], "int32")
    offsets = Array([2], [4, 0], "int64") if with_offsets else None
    engine.schedule(row_slots=slots, row_offsets=offsets)
    out = engine.kernels.attend(engine.layers[1], engine.q, out=Array([9, 4, 16]))
    assert out.rows() == expected


def test_rows_without_new_tokens_are_skipped_on_the_host():
    engine = Engine()
    expected = engine.run().rows()
    engine.tables = Array([2, 2], [7, -1, 5, 2], "int32")
    engine.lengths = Array([3], [6, 999, 3], "int32")
    engine.q_offsets = Array([4], [0, 6, 6, 9], "int64")
    engine.kernels.schedule(
        engine.tables,
        engine.lengths,
        engine.q_offsets,
        row_slots=Array([3], [1, -1, 0], "int32"),
        query_tokens=[6, 0, 3],
    )
    out = engine.kernels.attend(engine.layers[1], engine.q, out=Array([9, 4, 16]))
    assert out.rows() == expected


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"row_slots": Array([2], [0, 2], "int32")}, "row_slots[1]: 2; accepted: 0 .. 1"),
        ({"row_slots": Array([2], [-2, 1], "int32")}, "row_slots[0]: -2; accepted: 0 .. 1"),
        ({"row_slots": Array([2], [-1, 1], "int32")}, "row_slots[0]: -1 for a row with new tokens"),
        ({"tables": Array([1, 2], [5, 2], "int32")}, "tables: 1; accepted: 0 .. 0"),
        ({"query_tokens": [6, -1]}, "query_tokens: -1; accepted: 0 or more"),
    ],
)
def test_bad_rows_are_refused_on_the_host(how, words):
    engine = Engine()
    given = {"tables": engine.tables, "query_tokens": [6, 3]} | how
    with pytest.raises(ValueError) as caught:
        engine.kernels.schedule(lengths=engine.lengths, q_offsets=engine.q_offsets, **given)
    assert words in str(caught.value)


def test_scales_are_refused_on_the_host(cache):
    engine, scale = Engine(), Array([1])
    engine.run()
    words = "_scale: a tensor; accepted: None on the host"
    with pytest.raises(ValueError, match="key" + words):
        engine.kernels.write(engine.layers[0], engine.slots, engine.k, engine.v, key_scale=scale)
    with pytest.raises(ValueError, match="value" + words):
        engine.kernels.attend(engine.layers[0], engine.q, value_scale=scale)
    with cache.step([cache.create_sequence()]) as step:
        with pytest.raises(ValueError, match="value" + words):
            step.write(0, Array([1, 2, 16]), Array([1, 2, 16]), value_scale=scale)


@pytest.mark.parametrize("closes", [False, True])
def test_a_schedule_that_changes_while_tensors_are_read_is_refused(closes):
    engine = Engine()
    engine.run()

    class Meanwhile(Array):
        def __dlpack__(self, *, max_version=None, stream=None):
            if closes:
                engine.kernels.close()
            else:
                lengths, q_offsets = Array([1], [1], "int32"), Array([2], [0, 1], "int64")
                engine.kernels.schedule(Array([1, 2], [5, 2], "int32"), lengths, q_offsets)
            return super().__dlpack__(stream=stream)

    out = Array([9, 4, 16])
    with pytest.raises(kvarena.FailedPrecondition, match="changed while|are closed"):
        engine.kernels.attend(engine.layers[1], Meanwhile([9, 4, 16]), out=out)
    assert set(out.memory) == {0}
    with pytest.raises((kvarena.FailedPrecondition, ValueError)):
        engine.kernels.attend(engine.layers[1], engine.q, out=out)


@pytest.mark.parametrize(
    ("lengths", "offsets", "words"),
    [
        ([9, 3], None, r"lengths\[0\]: 9 tokens; accepted: 0 .. 8"),
        ([6, -1], None, r"lengths\[1\]: -1 tokens"),
        ([6, 3], [0, 4], r"row_offsets\[1\]: 4"),
        ([6, 3], [-2, 2], r"row_offsets\[0\]: -2"),
        ([6, 3], [10**17, 2], r"row_offsets\[0\]: 10"),
    ],
)
def test_rows_outside_the_tables_are_refused_on_the_host(lengths, offsets, words):
    engine = Engine()
    engine.lengths = Array([2], lengths, "int32")
    given = {} if offsets is None else {"row_offsets": Array([2], offsets, "int64")}
    with pytest.raises(ValueError, match=words):
        engine.schedule(**given)


def test_a_table_with_a_block_that_is_none_is_refused_on_the_host():
    engine = Engine()
    engine.tables = Array([2, 2], [5, 8, 7, -1], "int32")
    with pytest.raises(kvarena.InvalidArgument, match="8"):
        engine.schedule()
