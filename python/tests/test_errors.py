"""Exceptions, log lines, threads, and the end of the interpreter."""

import pickle
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request

import pytest
from provider import Array

import kvarena
from kvarena import _core, _errors


def test_there_is_a_class_for_every_status_code():
    header = (kvarena.include_dir() / "kvarena/kvarena.h").read_text()
    codes = header[header.index("typedef enum kvarena_code") : header.index("} kvarena_code;")]
    for line in codes.splitlines()[2:]:
        name = line.split("=")[0].strip().removeprefix("KVARENA_").lower()
        assert _errors.BY_CODE[name].code == name
    assert len(_errors.BY_CODE) == 18


@pytest.mark.parametrize("cls", _errors.BY_CODE.values())
def test_exceptions_pickle_with_their_fields(cls):
    made = cls("text", resource="block", required=3, available=1, demand=2)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is cls and str(again) == "text"
    assert again.__dict__ == made.__dict__ and again.required == 3


def test_an_explanation_pickles_inside_its_exception(cache):
    with pytest.raises(kvarena.Exhausted) as refused, cache.step([(cache.create_sequence(), 99)]):
        pass
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.explanation == refused.value.explanation
    assert again.explanation.requested == 25


def test_options_are_refused_with_their_name(make_cache):
    with pytest.raises(kvarena.InvalidArgument) as refused:
        make_cache(num_layers=0)
    assert refused.value.option == "num_layers"
    with pytest.raises(TypeError, match="num_blocks: 'many'; accepted: a whole number"):
        make_cache(num_blocks="many")
    with pytest.raises(ValueError, match='dtype: "f64"; accepted: "f16", "bf16", "f32"'):
        make_cache(dtype="f64")
    with pytest.raises(ValueError, match='device: "tpu"'):
        kvarena.Device("tpu")


def test_what_is_no_function_is_refused_by_name(make_cache):
    words = ": 5; accepted: None or a function"
    for argument, call in [
        ("log", lambda: make_cache(log=5)),
        ("log", lambda: kvarena.Pool(4, log=5)),
        ("function", lambda: kvarena.set_log(5)),
        ("function", lambda: kvarena.on_violation(5)),
        ("on_unhealthy", lambda: kvarena.HealthServer(make_cache(), on_unhealthy=5)),
        ("on_pressure", lambda: kvarena.HealthServer(make_cache(), on_pressure=5)),
    ]:
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == argument + words


@pytest.mark.parametrize("inline_calls", [True, False])
def test_a_stream_that_is_not_there_is_refused_by_its_number(make_cache, inline_calls):
    device = kvarena.Device(inline_calls=inline_calls)
    cache = make_cache(device)
    sequence, stream, ended = (
        cache.create_sequence(),
        device.create_stream(),
        device.create_stream(),
    )
    device.destroy_stream(ended)
    for number in (1, 17, stream + 1, 16 * 999, ended):
        for call in (
            lambda: cache.step([sequence], stream=number).__enter__(),
            lambda: cache.fence(number),
            lambda: cache.open_ticket(number),
            lambda: device.synchronize(number),
        ):
            with pytest.raises(kvarena.NotFound, match=f"stream {number}\\b") as caught:
                call()
            assert (caught.value.resource, caught.value.subject) == ("stream", number)
    with cache.step([sequence], stream=stream):
        assert cache.stream == stream
    assert sequence.length == 1


def test_recorded_steps_need_a_gpu(cache):
    with pytest.raises(kvarena.Unsupported, match="^recorded steps need a GPU: ") as caught:
        cache.record(rows=1)
    assert caught.value.resource == "device"
    with cache.step([cache.create_sequence()]):
        pass


def test_a_second_thread_inside_is_refused(make_cache):
    """The GIL is released while a call works: another thread comes in and is told so."""
    cache = make_cache(num_blocks=4096, max_step_tokens=16384, num_layers=1)
    sequence, refused = cache.create_sequence(), []
    entered = threading.Event()

    def ask():
        entered.set()
        for _ in range(200_000):
            try:
                cache.stats()
            except kvarena.FailedPrecondition as e:
                refused.append(e)
                return
            if done.is_set():
                return

    done = threading.Event()
    thread = threading.Thread(target=ask)
    n = 4096
    k, q = Array([n, 2, 16]), Array([n, 4, 16])
    with cache.step([(sequence, n)]) as step:
        step.write(0, k, k)
        thread.start()
        entered.wait()
        step.attend(0, q, out=Array([n, 4, 16]))
        done.set()
        thread.join()
    assert refused and refused[0].resource == "thread"
    cache.check()


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_log_lines_come_on_a_thread_of_their_own(make_cache):
    lines = []
    kvarena.set_log(
        lambda level, line: lines.append((level, line, threading.current_thread().name))
    )
    try:
        make_cache()
        wait_for(lambda: lines)
        assert {name for _, _, name in lines} == {"kvarena-log"}
        assert lines[0][0] == "info"
    finally:
        kvarena.set_log(None)
    with pytest.raises(ValueError, match="level: 'loud'"):
        kvarena.set_log(level="loud")


def test_lines_that_find_the_queue_full_are_counted(make_cache):
    """The reader is kept from reading while more lines come than the queue has places."""
    lines, blocked, go_on = [], threading.Event(), threading.Event()

    def slow(level, line):
        lines.append(line)
        blocked.set()
        go_on.wait(30)

    kvarena.set_log(slow, "debug")
    try:
        device = kvarena.Device()
        while not blocked.is_set():
            device.allocate(64)
        for _ in range(5000):
            device.allocate(64)
        go_on.set()
        wait_for(lambda: any("log lines were dropped" in line for line in lines))
    finally:
        go_on.set()
        kvarena.set_log(None)


def test_health_server(make_cache):
    cache = make_cache(name="mine")
    with kvarena.HealthServer(cache, port=0) as server:
        with urllib.request.urlopen(server.url + "/health") as answer:
            assert answer.status == 200
        with urllib.request.urlopen(server.url + "/metrics") as answer:
            assert b"mine" in answer.read()
        assert server.monitor.is_healthy
    with pytest.raises(kvarena.Error):
        server.monitor.check()


def test_health_calls_back_when_pressure_rises(make_cache):
    cache, heard = make_cache(name="mine"), []
    options = kvarena.MonitorOptions(pressure_period_ns=10_000_000, ignore_vram=True)
    server = kvarena.HealthServer(cache, options=options, on_pressure=lambda *a: heard.append(a))
    with server:
        with cache.step([(cache.create_sequence(), 64)]):
            pass
        cache.publish()
        wait_for(lambda: heard)
    assert heard[0][0] == "mine" and heard[0][2] > heard[0][1]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SETUP = """
    import kvarena
    device = kvarena.Device(inline_calls={inline})
    cache = kvarena.Cache(device, kvarena.CacheOptions(
        num_layers=1, num_kv_heads=1, head_dim=8, num_q_heads=1, dtype="f32", num_blocks=4, name="x"))
    sequence = cache.create_sequence()
"""


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "rest",
    [
        "step = cache.step([(sequence, 3)]); step.__enter__()",
        "kvarena.set_log(level='debug'); server = kvarena.HealthServer(cache)",
        "kvarena.set_log(print, 'debug'); cache.me = None if False else 0",
        "import sys; sys.exit(0)",
        "kvarena.on_violation(print); held = [cache, sequence]; held.append(held)",
    ],
)
def test_the_interpreter_ends_with_live_objects(inline, rest):
    if "cache.me" in rest:
        rest = rest.split(";")[0]
    done = run(textwrap.dedent(SETUP.format(inline=inline)) + rest)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "nanobind" not in done.stderr


def test_importing_needs_neither_torch_nor_numpy():
    done = run("import kvarena, sys; assert not {'torch', 'numpy'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_a_gpu_that_is_not_there_is_an_exception():
    if kvarena.has_cuda() and kvarena.devices().get("gpus"):
        pytest.skip("there is a GPU")
    with pytest.raises((kvarena.DeviceError, kvarena.Unsupported, kvarena.InvalidArgument)):
        kvarena.Device("cuda:0")


def test_the_core_speaks_the_header_s_interface():
    assert _core.abi() >= 1
