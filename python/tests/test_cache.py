"""Caches, sequences and questions."""

import json

import pytest

import kvarena


def grow(cache, *demands):
    with cache.step(list(demands)):
        pass


def test_sequences_share_and_cut_and_end(cache):
    parent = cache.create_sequence(owner=7)
    grow(cache, (parent, 10))
    assert (parent.length, parent.num_blocks, parent.blocks) == (10, 3, [0, 1, 2])
    child = parent.fork(8)
    assert child.blocks == [0, 1]
    assert child.info().owner == 7
    assert child != parent and child == cache.sequences()[1]
    parent.truncate(4)
    assert parent.blocks == [0]
    assert parent.slot(3) == 3
    parent.destroy()
    cache.destroy([child])
    assert cache.sequences() == []
    assert cache.stats().free == 16
    cache.check()


def test_a_fork_without_a_length_shares_everything(cache):
    parent = cache.create_sequence()
    grow(cache, (parent, 5))
    child = parent.fork()
    assert child.length == 5
    with cache.step([child]) as step:  # one token, into the shared last block
        assert (step.num_tokens, step.new_blocks, step.num_copies) == (1, 1, 1)
    assert parent.blocks[1] != child.blocks[1]


def test_exhausted_says_who_holds_what_and_changes_nothing(cache):
    sequences = [cache.create_sequence(owner=100 + i) for i in range(3)]
    grow(cache, (sequences[0], 40), (sequences[1], 12))
    before = cache.stats()
    with pytest.raises(kvarena.Exhausted) as refused, cache.step([(sequences[2], 20)]):
        pass
    e = refused.value
    assert (e.resource, e.required, e.available, e.demand) == ("block", 5, 3, 0)
    assert [h.sequence for h in e.explanation.largest] == [sequences[0].id, sequences[1].id]
    assert e.explanation.largest[0].owner == 100
    assert not e.explanation.fits
    assert "5" in str(e)
    after = cache.stats()
    assert after[:12] == before[:12]  # the accounts
    assert (after.tokens, after.entries, after.releases) == (52, 13, before.releases)
    sequences.pop(0).destroy()
    grow(cache, (sequences[1], 20))
    cache.check()


def test_a_refused_demand_can_be_made_smaller_in_the_same_step(cache):
    sequence = cache.create_sequence()
    with cache.step() as step:
        with pytest.raises(kvarena.Exhausted):
            step.append([(sequence, 16 * 4 + 1)])
        step.append([(sequence, 16 * 4)])
    assert sequence.length == 64


def test_an_exception_aborts_the_step(cache):
    sequence = cache.create_sequence()
    grow(cache, (sequence, 3))
    with pytest.raises(ZeroDivisionError), cache.step([(sequence, 9)]) as step:
        assert step.num_tokens == 9
        raise ZeroDivisionError
    assert sequence.length == 3
    assert cache.stats().free == 15
    grow(cache, (sequence, 1))


def test_questions(cache):
    sequence = cache.create_sequence()
    grow(cache, (sequence, 4))
    assert cache.explain(15).fits and not cache.explain(16).fits
    assert json.loads(cache.explain_json(16))["requested"] == 16
    assert "16" in cache.explain_text(16)
    assert cache.can_allocate(15) and not cache.can_allocate(16)
    assert cache.available() == 15
    assert cache.stats().tokens == 4
    stats = json.loads(cache.stats_json())
    assert (stats["pages"], stats["groups"], stats["prefix_cache"]) == (None, [], None)
    assert cache.block(0).state == "referenced"
    (holder,) = cache.holders()
    assert (holder.sequence, holder.references) == (sequence.id, 1)
    cache.publish()
    assert cache.snapshot().referenced == 1
    assert not cache.has_pending_work()


def test_options_come_back_with_their_defaults(make_cache):
    options = make_cache(block_size=0, num_blocks=5, window_tokens=8).options
    assert (options.block_size, options.num_blocks, options.window_tokens) == (16, 5, 8)
    assert (options.dtype, options.tile_order, options.steps_in_flight) == ("f32", "rows", 2)


def test_the_operation_log_hears_every_mutating_call(make_cache):
    heard = []
    cache = make_cache(log=heard.append)
    sequence = cache.create_sequence()
    grow(cache, (sequence, 5))
    sequence.destroy()
    kinds = [operation.kind for operation in heard]
    assert kinds[0] == "register_holder" and kinds[-1] == "unregister_holder"
    (allocation,) = [o for o in heard if o.kind == "allocate"]
    assert allocation.blocks == (0, 1) and allocation.outcome == "ok"


def test_tickets(cache):
    sequence = cache.create_sequence()
    grow(cache, (sequence, 8))
    ticket = cache.open_ticket()
    sequence.destroy(ticket=ticket)
    assert cache.stats().fenced == 2
    assert cache.available(ticket) == 16
    cache.retire(ticket)
    assert cache.stats().free == 16


def test_footprint_is_what_create_takes(make_cache):
    cache = make_cache()
    footprint = kvarena.footprint(cache.device, cache.options)
    assert footprint.num_blocks == 16
    assert cache.device.info().tracked_bytes == footprint.device_bytes
    fit = kvarena.footprint(cache.device, cache.options, budget_bytes=footprint.device_bytes)
    assert fit.num_blocks == 16


def test_an_allocator_reports_what_it_holds():
    device = kvarena.Device()
    device.report_memory("weights of the engine", "model_weights", 3 << 20)
    device.report_memory("weights of the engine", "model_weights", 5 << 20)  # in its place
    reported = json.loads(device.json())["usage"]["reported"]
    assert [(r["name"], r["purpose"], r["bytes"]) for r in reported] == [
        ("weights of the engine", "ModelWeights", 5 << 20)
    ]
    with pytest.raises(ValueError, match='purpose: "mine"; accepted: "model_weights"'):
        device.report_memory("name", "mine", 1)
    with pytest.raises(kvarena.InvalidArgument):
        device.report_memory("", "kv_cache", 1)
    device.close()
    with pytest.raises(kvarena.FailedPrecondition, match="^the device is closed$"):
        device.report_memory("name", "kv_cache", 1)


def test_plans_presets_devices():
    plan = kvarena.plan("Qwen2.5-0.5B", gpu="H200-SXM", context=8192)
    assert plan.max_batch == plan["max_batch"] > 1000
    assert "H200-SXM" in kvarena.presets()["gpus"]
    assert isinstance(kvarena.devices(), dict)
    with pytest.raises(kvarena.NotFound, match="no such|called"):
        kvarena.plan("no such model", memory_bytes=1 << 30)
    with pytest.raises(kvarena.ParseError, match="member"):
        kvarena.plan("Qwen2.5-0.5B", gpu="H200-SXM", nonsense=1)
    with pytest.raises(AttributeError, match="max_batch"):
        _ = plan.nonsense


def test_the_package_holds_header_and_library():
    assert "kvarena_cache_create" in (kvarena.include_dir() / "kvarena/kvarena.h").read_text()
    assert kvarena.library_path().is_file()
    assert kvarena.__version__
