"""Operations and bytes, compared with PyTorch's own counter of operations and the bytes of
real tensors."""

import pytest
from solved import Given

from coursekit.formulas import (
    GPUS,
    LINKS,
    OPERATIONS,
    evaluate,
    quantities,
)

SHAPES = [(1, 1, 1), (5, 7, 3), (1, 96, 64), (33, 2, 129)]


@pytest.mark.parametrize("rows, columns, depth", SHAPES)
def test_what_a_product_does_and_moves(rows, columns, depth):
    """Mutations: one operation for a multiplication and an addition; the result left out; rows for
    columns."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.zeros(rows, depth, dtype=dtype), torch.zeros(depth, columns, dtype=dtype)
        with FlopCounterMode(display=False) as counter:
            c = a @ b
        found = Given(
            matrix_product=1,
            operation_rows=rows,
            operation_columns=columns,
            operation_depth=depth,
            operation_element_bytes=dtype.itemsize,
        )
        assert found.operation_flops == found.product_flops == counter.get_total_flops()
        assert found.operation_bytes == found.product_bytes == a.nbytes + b.nbytes + c.nbytes


@pytest.mark.parametrize("rows, columns, count", SHAPES)
def test_what_an_elementwise_operation_does_and_moves(rows, columns, count):
    """Mutations: each operation's result written although fused; the read forgotten; a product's
    numbers for both kinds."""
    import torch
    from operators import Operators

    x = torch.zeros(rows, columns)
    with Operators() as operators:
        y = x
        for _ in range(count):
            y = torch.relu(y)
    found = evaluate(
        ["operation_flops", "operation_bytes"],
        matrix_product=0,
        operation_rows=rows,
        operation_columns=columns,
        operation_depth=count,
        operation_element_bytes=4,
    )
    flops = sum(elements for _, elements in operators.seen)
    assert found == {"operation_flops": flops, "operation_bytes": x.nbytes + y.nbytes}


def test_which_bound():
    """The sentence of the explorer by hand. Mutations: `<=` for `<` at the ridge; the share or
    the seconds of the wrong roof."""
    h100 = quantities(gpu="H100 SXM 80GB", operation="square product", operation_element_bytes=2)
    found = Given(**h100)
    assert found.arithmetic_intensity == pytest.approx(4096 / 3)
    assert found.ridge_intensity == pytest.approx(989 / 3.35)
    assert (found.bound_by_memory, found.attainable_share) == (0, 1)
    assert found.operation_seconds == pytest.approx(138.97e-6, rel=1e-4)
    token = Given(**{**h100, **OPERATIONS["one token through a layer"].quantities})
    assert token.bound_by_memory == 1
    assert token.operation_seconds == pytest.approx(token.operation_bytes / 3.35e12)
    assert token.attainable_share == pytest.approx(token.arithmetic_intensity / (989 / 3.35))
    at_the_ridge = evaluate(
        ["bound_by_memory", "attainable_share"],
        flops_per_second=8.0,
        memory_bytes_per_second=2.0,
        arithmetic_intensity=4.0,
    )
    assert at_the_ridge == {"bound_by_memory": 0, "attainable_share": 1.0}


def test_presets():
    """400 Gbit/s are 50 GB/s. Mutations: bits for bytes; 2.0389999 TB/s; links of a node left
    out."""
    assert GPUS["A100 SXM 80GB"].quantities["memory_bytes_per_second"] == 2039e9
    for name, bits in (
        ("network, 400 Gbit/s", 400e9),
        ("network, 100 Gbit/s", 100e9),
        ("Ethernet, 1 Gbit/s", 1e9),
    ):
        assert 8 * LINKS[name].quantities["link_bytes_per_second"] == bits
    both = quantities(
        link="network, 400 Gbit/s", node_link="NVLink 4 (H100)", operation="small product"
    )
    assert (both["link_bytes_per_second"], both["node_bytes_per_second"]) == (50e9, 450e9)
    assert both["latency_seconds"] > both["node_latency_seconds"] and both["operation_depth"] == 256


def test_a_datasheets_rate():
    """The A100's 108 multiprocessors at 1.41 GHz. Mutations: a factor left out; the share upside
    down."""
    a100 = quantities(gpu="A100 SXM 80GB")
    made = Given(multiprocessors=108, multiprocessor_flops_per_cycle=2048, cycles_per_second=1.41e9)
    assert made.chip_flops_per_second == pytest.approx(a100["flops_per_second"], rel=1e-3)
    assert Given(**a100).measured_share == pytest.approx(0.869, abs=5e-4)


def test_rates_of_eight_and_four_bits():
    """Dense rates; C2C on GPUs that share a package with a CPU. Must catch: a rate with sparsity; a
    rate of a GPU that has no such unit."""
    for name, preset in GPUS.items():
        rates = preset.quantities
        if "fp8_flops_per_second" in rates:
            assert 1.98 <= rates["fp8_flops_per_second"] / rates["flops_per_second"] <= 2.03, name
        if "fp4_flops_per_second" in rates:
            assert 2 <= rates["fp4_flops_per_second"] / rates["fp8_flops_per_second"] <= 3, name
    with_units = {name for name in GPUS if "fp8_flops_per_second" in GPUS[name].quantities}
    assert not with_units & {"V100 SXM2 32GB", "T4", "A100 SXM 40GB", "A100 SXM 80GB"}
    in_package = {n for n in GPUS if "chip_to_chip_bytes_per_second" in GPUS[n].quantities}
    assert in_package == {"GB200", "GB300"}


@pytest.mark.parametrize("launch, operation", [(5.0, 2.0), (5.0, 5.0), (5.0, 200.0), (0.0, 3.0)])
def test_pace(launch, operation):
    """Mutations: the sum, or the smaller of the two."""
    done = 0.0
    for number in range(1000):
        done = max(done, (number + 1) * launch) + operation
    found = Given(launch_seconds=launch, operation_seconds=operation)
    assert done / 1000 == pytest.approx(found.queued_operation_seconds, rel=0.01)
