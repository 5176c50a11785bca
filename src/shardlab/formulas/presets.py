"""Models, recipes, GPUs, links and operations by name: quantities that belong together, with their
source.

    states_bytes(**quantities(model="GPT-2 124M", recipe="fp32 Adam"))
    evaluate(["spare_bytes"], **quantities(recipe="bf16 + fp32 master", gpu="T4",
    parameters=7_000_000_000, gpus_per_copy=1))
"""

import csv
import importlib.resources
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """Quantities under a name. `note` says what is behind the numbers; `verified` names the test,
    or is empty: not held against a run yet."""

    name: str
    quantities: MappingProxyType
    source: str
    note: str = ""
    verified: str = ""


def _by_name(presets):
    return MappingProxyType({preset.name: preset for preset in presets})


# --- models ---------------------------------------------------------------------------------------
def _gpt(name, layers, hidden, heads, source, *, vocabulary=50_257, max_sequence=1024):
    return Preset(
        name,
        MappingProxyType(
            dict(
                layers=layers,
                hidden=hidden,
                heads=heads,
                key_value_heads=heads,
                feed_forward=4 * hidden,
                vocabulary=vocabulary,
                max_sequence=max_sequence,
                learned_positions=1,
                biases=1,
                gated_mlp=0,
                tied_head=1,
            )
        ),
        source,
    )


def _llama(name, layers, hidden, heads, key_value_heads, feed_forward, max_sequence, source):
    return Preset(
        name,
        MappingProxyType(
            dict(
                layers=layers,
                hidden=hidden,
                heads=heads,
                key_value_heads=key_value_heads,
                feed_forward=feed_forward,
                vocabulary=32_000,
                max_sequence=max_sequence,
                learned_positions=0,
                biases=0,
                gated_mlp=1,
                tied_head=0,
            )
        ),
        source,
    )


_GPT2, _GPT3 = "Radford et al. 2019, Table 2", "Brown et al. 2020, Table 2.1"
_LLAMA, _LLAMA2 = "Touvron et al. 2023a, Table 2", "Touvron et al. 2023b, Table 1 and section 2.2"

MODELS = _by_name(
    [
        _gpt("GPT-2 124M", 12, 768, 12, _GPT2),
        _gpt("GPT-2 355M", 24, 1024, 16, _GPT2),
        _gpt("GPT-2 774M", 36, 1280, 20, _GPT2),
        _gpt("GPT-2 1.5B", 48, 1600, 25, _GPT2),
        _gpt("GPT-3 175B", 96, 12_288, 96, _GPT3, max_sequence=2048),
        _llama("Llama 7B", 32, 4096, 32, 32, 11_008, 2048, _LLAMA),
        _llama("Llama 13B", 40, 5120, 40, 40, 13_824, 2048, _LLAMA),
        _llama("Llama 2 70B", 80, 8192, 64, 8, 28_672, 4096, _LLAMA2),
    ]
)


# --- recipes --------------------------------------------------------------------------------------
def _recipe(
    name,
    parameter,
    gradient,
    master,
    moments,
    moment,
    step,
    residual,
    compute,
    source,
    note,
    verified="",
):
    return Preset(
        name,
        MappingProxyType(
            dict(
                parameter_element_bytes=parameter,
                gradient_element_bytes=gradient,
                master_element_bytes=master,
                optimizer_moments=moments,
                moment_element_bytes=moment,
                step_counter_element_bytes=step,
                residual_element_bytes=residual,
                compute_element_bytes=compute,
            )
        ),
        source,
        note,
        verified,
    )


_RUN = "tests/why_one_gpu/test_states.py::test_states_of_a_training_run"

RECIPES = _by_name(
    [
        _recipe(
            "fp32 Adam", 4, 4, 0, 2, 4, 4, 4, 4, "torch.optim.AdamW", "everything in fp32", _RUN
        ),
        _recipe(
            "autocast Adam",
            4,
            4,
            0,
            2,
            4,
            4,
            4,
            2,
            "torch.autocast",
            "fp32 states; the 16-bit copies of weights that autocast caches come and go within a"
            " step",
            _RUN,
        ),
        _recipe(
            "bf16 + fp32 master",
            2,
            2,
            4,
            2,
            4,
            0,
            2,
            2,
            "Rajbhandari et al. 2020 (ZeRO), section 3.1",
            "16-bit parameters and gradients; the optimizer keeps an fp32 master copy and fp32"
            " moments",
        ),
        _recipe(
            "bf16 + fp32 gradients",
            2,
            4,
            4,
            2,
            4,
            0,
            2,
            2,
            "Megatron-LM, distributed optimizer",
            "16-bit parameters, gradients accumulated in fp32, fp32 master copy and moments",
        ),
        _recipe(
            "fp16 + fp32 gradients",
            2,
            6,
            4,
            2,
            4,
            0,
            2,
            2,
            "Megatron-LM, distributed optimizer",
            "16-bit parameters and gradients, and beside these gradients their fp32 copy; fp32"
            " master copy and moments",
        ),
        _recipe(
            "fp32 SGD momentum",
            4,
            4,
            0,
            1,
            4,
            0,
            4,
            4,
            "torch.optim.SGD(momentum=...)",
            "one fp32 tensor of momentum",
            _RUN,
        ),
        _recipe(
            "bf16, no master",
            2,
            2,
            0,
            2,
            2,
            4,
            2,
            2,
            "torch.optim.AdamW on a bf16 model",
            "everything in bf16: small, but updates below the spacing of bf16 are lost",
            _RUN,
        ),
        _recipe(
            "8-bit Adam",
            4,
            4,
            0,
            2,
            1,
            0,
            4,
            4,
            "Dettmers et al. 2022",
            "fp32 parameters and gradients, moments of one byte; the scale that each block of"
            " elements keeps is not counted",
        ),
    ]
)


# --- GPUs -----------------------------------------------------------------------------------------
def _gpus():
    table = (
        importlib.resources.files("shardlab")
        .joinpath("data/hardware.csv")
        .read_text(encoding="utf-8")
    )
    for row in csv.DictReader(table.splitlines()):
        dense_tflops = float(row["dense_tflops_bf16"] or row["dense_tflops_fp16"])
        kind = "bf16" if row["dense_tflops_bf16"] else "fp16"
        yield Preset(
            row["name"],
            MappingProxyType(
                dict(
                    gpu_memory_bytes=int(row["memory_GB"]) * 10**9,
                    flops_per_second=dense_tflops * 1e12,
                    memory_bytes_per_second=float(f"{row['memory_bandwidth_TBps']}e12"),
                )
            ),
            row["source"],
            f"{row['memory_GB']} GB, {dense_tflops:g} dense {kind} TFLOP/s",
            row["verified"],
        )


GPUS = _by_name(_gpus())


# --- links ----------------------------------------------------------------------------------------
_TABLES = "ml-engineering@0030e63 network/README.md"
_TUNING = "NCCL@01afd20 src/graph/tuning.cc, the ring's latency for a step with the protocol Simple"
_NVLINK, _PCIE, _NETWORK = 3.4e-6, 5.7e-6, 9.6e-6  # seconds, of that file


def _link(name, latency_seconds, bytes_per_second, source):
    return Preset(
        name,
        MappingProxyType(
            dict(latency_seconds=latency_seconds, link_bytes_per_second=bytes_per_second)
        ),
        f"Bandwidth: {source}. Latency: {_TUNING}",
        "each way, as vendors print it",
    )


LINKS = _by_name(
    [
        _link("NVLink 5 (B200)", _NVLINK, 900e9, _TABLES),
        _link("NVLink 4 (H100)", _NVLINK, 450e9, _TABLES),
        _link("NVLink 3 (A100)", _NVLINK, 300e9, _TABLES),
        _link("NVLink 2 (V100)", _NVLINK, 150e9, _TABLES),
        _link("PCIe 5 x16", _PCIE, 63e9, _TABLES),
        _link("PCIe 4 x16", _PCIE, 31e9, _TABLES),
        _link("network, 400 Gbit/s", _NETWORK, 50e9, "400 Gbit/s are 50 GB/s"),
        _link("network, 100 Gbit/s", _NETWORK, 12.5e9, "100 Gbit/s are 12.5 GB/s"),
        _link("Ethernet, 1 Gbit/s", _NETWORK, 125e6, "1 Gbit/s is 125 MB/s"),
    ]
)
NODE_LINKS = _by_name(  # the same, where ranks of one node talk over another link than nodes do
    Preset(
        link.name,
        MappingProxyType(
            dict(
                node_latency_seconds=link.quantities["latency_seconds"],
                node_bytes_per_second=link.quantities["link_bytes_per_second"],
            )
        ),
        link.source,
        link.note,
    )
    for link in LINKS.values()
)


# --- operations -----------------------------------------------------------------------------------
def _operation(name, product, rows, columns, depth, note):
    return Preset(
        name,
        MappingProxyType(
            dict(
                matrix_product=product,
                operation_rows=rows,
                operation_columns=columns,
                operation_depth=depth,
            )
        ),
        "shapes of our own",
        note,
    )


OPERATIONS = _by_name(
    [
        _operation(
            "square product",
            1,
            4096,
            4096,
            4096,
            "one of the products in a layer of hidden size 4,096",
        ),
        _operation("small product", 1, 256, 256, 256, "too small to keep a large chip busy"),
        _operation(
            "one token through a layer",
            1,
            1,
            4096,
            4096,
            "generating text one sequence at a time: each weight is used once",
        ),
        _operation(
            "attention at decode",
            1,
            1,
            8192,
            128,
            "one query of one head against 8,192 cached keys",
        ),
        _operation("one elementwise operation", 0, 4096, 4096, 1, "such as a ReLU"),
        _operation(
            "sixteen, fused",
            0,
            4096,
            4096,
            16,
            "sixteen elementwise operations in one kernel: each element still moves twice",
        ),
    ]
)

PRESETS = MappingProxyType(
    dict(
        model=MODELS,
        recipe=RECIPES,
        gpu=GPUS,
        link=LINKS,
        node_link=NODE_LINKS,
        operation=OPERATIONS,
    )
)


def quantities(
    model=None, recipe=None, gpu=None, link=None, node_link=None, operation=None, **given
):
    """The quantities of the named presets in one dict; what is given by name comes last and
    wins."""
    merged, chosen = (
        {},
        dict(
            model=model, recipe=recipe, gpu=gpu, link=link, node_link=node_link, operation=operation
        ),
    )
    for kind, name in chosen.items():
        if name is None:
            continue
        if name not in PRESETS[kind]:
            raise TypeError(f"no {kind} is named {name!r}; there are {', '.join(PRESETS[kind])}.")
        merged.update(PRESETS[kind][name].quantities)
    return {**merged, **given}
