"""What packing costs when inputs are bound: memory by what the system counts, threads, and when it has paid."""

import tracemalloc

import numpy as np
import pytest

import polyq
from polyq import Layout, Schedule
from polyq.build.payoff import Payoff

BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def layer_of(n, g, j, **options):
    spec = polyq.parse(BODY, w=("u8", (n, g, j)), z=("f32", (n, g)), s=("f32", (n, g)), x=("f32", ("m", g, j)))
    r = np.random.default_rng(0)
    arrays = {
        "w": r.integers(0, 256, (n, g, j), dtype=np.uint8), "z": r.random((n, g), "f4"), "s": r.random((n, g), "f4")
    }  # fmt: skip
    return polyq.build(spec, constants=("w", "z", "s"), **options), arrays


def status(field):
    """A size in bytes from /proc/self/status."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


@pytest.mark.parametrize("n", [2048, 2040])  # whole tiles, and a padded last one
def test_the_peak_is_what_came_and_what_was_made(n):
    kernel, arrays = layer_of(n, 32, 128)
    small = kernel.bind(**arrays)  # whatever is allocated once is there
    came = sum(a.nbytes for a in arrays.values())
    del small
    tracemalloc.start()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = status("VmRSS")
    layer = kernel.bind(**arrays)
    resident, (_, traced) = status("VmHWM") - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    packing = layer.packing
    assert (packing.taken, packing.made, packing.peak) == (came, layer.nbytes, came + layer.nbytes)
    assert layer.nbytes <= 1.1 * came
    limit = 1.1 * packing.peak - came
    assert traced <= limit
    assert resident <= limit + (1 << 20)  # pages of the process itself
    assert traced >= layer.nbytes  # it is counted at all


def test_packing_is_divided_among_threads():
    kernel, arrays = layer_of(512, 4, 32, threads=2)
    source = kernel.plan.prologue.source
    assert source.count("runtime->run(") == 3  # codes, zero points and scales
    layout = Layout.of((512, 4, 32)).tile((0,), (32,))
    spec = kernel.spec
    by_hand = polyq.build(Schedule.naive(spec).pack("w", layout))
    assert by_hand.plan.prologue.source.count("runtime->run(") == 1
    one, two = (polyq.build(spec, constants=("w", "z", "s"), threads=t).bind(**arrays) for t in (1, 2))
    for name, array in one.held.items():
        np.testing.assert_array_equal(array, two.held[name])


def test_when_packing_has_paid():
    assert Payoff(0.016, plain=0.0012, packed=0.0008).calls == 40
    assert Payoff(0.016, plain=0.0012, packed=0.0007).calls == 32
    assert Payoff(0.017, plain=0.0012, packed=0.0007).calls == 34
    assert Payoff(0.016, plain=0.0008, packed=0.0008).calls is None
    assert Payoff(0.0, plain=0.0008, packed=0.0008).calls == 0
    assert str(Payoff(0.016, plain=0.0012, packed=0.0008)) == (
        "packing 16 ms; a call 0.8 ms, without it 1.2 ms: it pays after 40 calls"
    )
    assert str(Payoff(0.016, plain=0.0008, packed=0.001)).endswith("it pays never")


def test_the_payoff_of_a_layer_is_measured():
    kernel, arrays = layer_of(256, 4, 32)
    layer = kernel.bind(**arrays)
    found = layer.payoff(repeats=3, m=2)
    assert found.packing == layer.packing.seconds
    assert found.plain > 0
    assert found.packed > 0
    unpacked = polyq.build(kernel.spec).bind(z=arrays["z"])
    assert unpacked.packing is None
    assert unpacked.payoff(repeats=3, m=1).calls == 0
    with pytest.raises(
        polyq.ArgumentError, match=r"payoff: y was built from a schedule.* compare their benchmark"
    ):
        polyq.build(Schedule.naive(kernel.spec)).bind(**arrays).payoff(m=1)
