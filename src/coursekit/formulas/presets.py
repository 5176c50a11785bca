"""Models, recipes, GPUs, links and operations by name: quantities that belong together, with their
source.

    states_bytes(**quantities(model="GPT-2 124M", recipe="fp32 Adam"))
    evaluate(["spare_bytes"], **quantities(recipe="bf16 + fp32 master", gpu="T4",
    parameters=7_000_000_000, gpus_per_copy=1))
"""

import csv
import importlib.resources
import re
from dataclasses import dataclass, replace
from types import MappingProxyType

from . import given as _quantities_of_models  # noqa: F401 - declares what presets give
from .registry import BOOK


@dataclass(frozen=True)
class Preset:
    """Quantities under a name. `note` says what is behind the numbers, `read_on` when they were
    read in the source; `verified` names the test, or is empty: not compared with a run yet."""

    name: str
    quantities: MappingProxyType
    source: str
    note: str = ""
    verified: str = ""
    read_on: str = ""  # 2026-11-22


def _by_name(presets):
    return MappingProxyType({preset.name: preset for preset in presets})


# --- models, recipes, operations ------------------------------------------------------------------
_RUN = "tests/why_one_gpu/test_states.py::test_states_of_a_training_run"
_PEAKS = "tests/where_the_memory_goes/test_published_peaks.py::test_published_peaks"
_COPIES = "tests/mixed_precision/test_master_weights.py::test_state_bytes"


def _table(text):
    """On the first line the quantities, then a preset on each: name | values in that order | source
    | note | test. An indented line goes on. A line `read on 2026-11-22` is about those below it;
    what follows `, as in` there has the same numbers."""
    (names, *lines), presets = re.sub(r"\n +", " ", text).strip().splitlines(), []
    day, also = "", ""
    for line in lines:
        if line.startswith("read on "):
            day, _, also = line.removeprefix("read on ").partition(", as in ")
            continue
        name, values, source, note, test = (*line.split(" | "), "", "")[:5]
        numbers = dict(zip(names.split(), map(int, values.split()), strict=True))
        source += f"; as in {also}" if also else ""
        test = {"run": _RUN, "copies": _COPIES, "peaks": _PEAKS}.get(test, test)
        presets.append(Preset(name, MappingProxyType(numbers), source, note, test, day))
    return _by_name(presets)


_SHAPES = _table(
    r"""
layers hidden heads key_value_heads feed_forward vocabulary max_sequence learned_positions biases
    gated_mlp tied_head
read on 2026-11-21
GPT-2 124M | 12 768 12 12 3072 50257 1024 1 1 0 1 | Radford et al. 2019, Table 2
GPT-2 355M | 24 1024 16 16 4096 50257 1024 1 1 0 1 | Radford et al. 2019, Table 2
GPT-2 774M | 36 1280 20 20 5120 50257 1024 1 1 0 1 | Radford et al. 2019, Table 2
read on 2026-11-22
GPT-2 1.5B | 48 1600 25 25 6400 50257 1024 1 1 0 1 | Radford et al. 2019, Table 2, and config.json
    of openai-community/gpt2-xl
read on 2026-11-21
GPT-3 175B | 96 12288 96 96 49152 50257 2048 1 1 0 1 | Brown et al. 2020, Table 2.1
Llama 7B | 32 4096 32 32 11008 32000 2048 0 0 1 0 | Touvron et al. 2023a, Table 2
Llama 13B | 40 5120 40 40 13824 32000 2048 0 0 1 0 | Touvron et al. 2023a, Table 2
read on 2026-11-22, as in litgpt@2685705 litgpt/config.py
Llama 2 70B | 80 8192 64 8 28672 32000 4096 0 0 1 0 | Touvron et al. 2023b, Table 1 and section 2.2
Llama 3 8B | 32 4096 32 8 14336 128256 8192 0 0 1 0 | Grattafiori et al. 2024, Table 3
Llama 3 70B | 80 8192 64 8 28672 128256 8192 0 0 1 0 | Grattafiori et al. 2024, Table 3
Llama 3 405B | 126 16384 128 8 53248 128256 131072 0 0 1 0 | Grattafiori et al. 2024, Table 3
Mistral 7B | 32 4096 32 8 14336 32000 32768 0 0 1 0 | Jiang et al. 2023, Table 1,
    and config.json of mistralai/Mistral-7B-v0.1 (32,768 positions; litgpt has 4,096)
"""
)
_OWN_HEADS = _table(  # models with what GPT-2 and Llama do not have
    r"""
layers hidden heads key_value_heads feed_forward vocabulary max_sequence learned_positions biases
    gated_mlp tied_head head_size query_key_norms norms_per_layer experts experts_per_token
read on 2026-11-22, as in litgpt@2685705 litgpt/config.py
Gemma 7B | 28 3072 16 16 24576 256000 8192 0 0 1 1 256 0 2 0 0 | Gemma Team 2024a, Table 1
Gemma 2 9B | 42 3584 16 8 14336 256000 8192 0 0 1 1 256 0 4 0 0 | Gemma Team 2024b, Table 1
Qwen3 0.6B | 28 1024 16 8 3072 151936 40960 0 0 1 1 128 1 2 0 0 | Qwen Team 2025, Table 1, and
    config.json of Qwen/Qwen3-0.6B
Qwen3 8B | 36 4096 32 8 12288 151936 40960 0 0 1 0 128 1 2 0 0 | Qwen Team 2025, Table 1, and
    config.json of Qwen/Qwen3-8B
Qwen3 32B | 64 5120 64 8 25600 151936 40960 0 0 1 0 128 1 2 0 0 | Qwen Team 2025, Table 1, and
    config.json of Qwen/Qwen3-32B
Mixtral 8x7B | 32 4096 32 8 14336 32000 32768 0 0 1 0 0 0 2 8 2 | Jiang et al. 2024, Table 1
Qwen3 30B-A3B | 48 2048 32 4 768 151936 40960 0 0 1 0 128 1 2 128 8 | Qwen Team 2025, Table 2, and
    config.json of Qwen/Qwen3-30B-A3B
"""
)


_PARTS = _table(  # models with an expert that every token goes through, or with latent attention
    r"""
layers hidden heads key_value_heads feed_forward vocabulary max_sequence learned_positions biases
    gated_mlp tied_head head_size experts experts_per_token shared_feed_forward dense_layers
    dense_feed_forward key_value_latent query_latent rotary_columns value_columns
read on 2026-11-26
Llama 4 Scout 109B | 48 5120 40 8 8192 202048 131072 0 0 1 0 128 16 1 8192 0 0 0 0 0 0 |
    transformers 5.24.0, the usual values of Llama4TextConfig
DeepSeek-V2 236B | 60 5120 128 128 1536 102400 163840 0 0 1 0 128 160 6 3072 1 12288 512 1536 64 128
    | SimuMax@e691807 configs/models/deepseekv2.json
DeepSeek-V3 671B | 61 7168 128 128 2048 129280 4096 0 0 1 0 128 256 8 2048 3 18432 512 1536 64 128
    | SimuMax@e691807 configs/models/deepseekv3.json | without the layer that predicts a second
    token
"""
)


def _without_usual(preset):
    """The preset without quantities that have their usual value: what a model does not have."""
    had = preset.quantities.items()
    kept = {name: value for name, value in had if value != BOOK.quantities[name].usual}
    return replace(preset, quantities=MappingProxyType(kept))


# Each count of parameters equals the published one: tests/engines/test_model_config.py
MODELS = _by_name(
    [*_SHAPES.values(), *map(_without_usual, [*_OWN_HEADS.values(), *_PARTS.values()])]
)

RECIPES = _table(
    r"""
parameter_element_bytes gradient_element_bytes master_element_bytes optimizer_moments
    moment_element_bytes step_counter_element_bytes residual_element_bytes compute_element_bytes
read on 2026-11-21
fp32 Adam | 4 4 0 2 4 4 4 4 | torch.optim.AdamW | everything in fp32 | run
autocast Adam | 4 4 0 2 4 4 4 2 | torch.autocast | fp32 states; the 16-bit copies of weights that
    autocast caches come and go within a step | run
bf16 + fp32 master | 2 2 4 2 4 0 2 2 | Rajbhandari et al. 2020 (ZeRO), section 3.1 | 16-bit
    parameters and gradients; the optimizer keeps an fp32 master copy and fp32 moments | copies
bf16 + fp32 gradients | 2 4 4 2 4 0 2 2 | Megatron-LM, distributed optimizer | 16-bit parameters,
    gradients accumulated in fp32, fp32 master copy and moments | copies
fp16 + fp32 gradients | 2 2 8 2 4 0 2 2 | Megatron-LM, distributed optimizer | 16-bit parameters and
    gradients; the optimizer keeps an fp32 copy of the gradient beside the fp32 master copy, 4 + 4
    bytes that are sharded with it, and fp32 moments | copies
bf16 + bf16 and fp32 gradients | 2 6 4 2 4 0 2 2 | nanotron, accumulate_grad_in_fp32 | gradients in
    16 bits and, added up, in fp32; fp32 master copy and moments | peaks
bf16 + fp32 master, bf16 moments | 2 2 4 2 2 0 2 2 | optimizer_states of shardlab.mixed_precision |
    the moments are in bf16 between updates | copies
bf16, stochastic rounding | 2 2 0 2 4 0 2 2 | stochastic_rounding of shardlab.mixed_precision |
    no master copy: weights are rounded up or down at random, right on average; moments in fp32 |
    copies
fp32 SGD momentum | 4 4 0 1 4 0 4 4 | torch.optim.SGD(momentum=...) | one fp32 tensor of momentum |
    run
bf16, no master | 2 2 0 2 2 4 2 2 | torch.optim.AdamW on a bf16 model | everything in bf16: small,
    but updates below the spacing of bf16 are lost | run
8-bit Adam | 4 4 0 2 1 0 4 4 | Dettmers et al. 2022 | fp32 parameters and gradients, moments of one
    byte; the scale that each block of elements keeps is not counted | copies
"""
)

KERNELS = _table(
    r"""
library_kernels loss_logit_bytes kept_gated_tensors kept_attention_outputs dummy_weight_gradients
    workspace_bytes
read on 2026-11-22
PyTorch eager | 0 12 4 1 0 67108864 | gpt.py of this book; cuBLAS keeps 32 MiB from Hopper on for
    each thread that multiplies (torch, CUDABlas.cpp) | tensors to the byte by the ledger; the
    workspace as its source states it
read on 2026-11-26
Megatron-LM with Transformer Engine | 1 6 3 1 1 100663296 | Megatron-LM,
    theoretical_memory_usage.py and vocab_parallel_cross_entropy; Transformer Engine from 2.3 on,
    get_dummy_wgrad, and 32 MiB beside cuBLAS | | peaks
Megatron-LM, fused loss | 1 2 3 1 1 100663296 | the same, with a loss fused into the head's product;
    as in the published runs, with Transformer Engine 2.11 | | peaks
Megatron-LM, Transformer Engine before 2.3 | 1 6 3 2 0 100663296 | the same, without get_dummy_wgrad
    and with a copy of attention's output that the kernel keeps | not compared with a run here
Megatron-LM without Transformer Engine | 1 6 3 1 0 134217728 | Megatron-LM, --transformer-impl
    local; its golden values of pipelines hold four workspaces of 32 MiB between steps | | peaks
nanotron | 1 14 4 7 0 0 | nanotron, models/llama.py: SwiGLU in eager PyTorch; loss_logit_bytes and
    kept_attention_outputs fitted on half of the published rows | | peaks
FSDP2, compiled | 1 9 3 1 0 25769803776 | torchtitan, benchmarks/llama3_h100_202412_torchtitan.md;
    loss_logit_bytes, and 24 GiB that the allocator holds beside tensors in runs that fill a card,
    fitted on half of the published rows | | peaks
"""
)

OPERATIONS = _table(
    r"""
matrix_product operation_rows operation_columns operation_depth
read on 2026-11-21
square product | 1 4096 4096 4096 | shapes of this book | one of the products in a layer of hidden
    size 4,096
small product | 1 256 256 256 | shapes of this book | too small to keep a large chip busy
one token through a layer | 1 1 4096 4096 | shapes of this book | generating text one sequence at a
    time: each weight is used once
attention of one new token | 1 1 8192 128 | shapes of this book | one query of one head against
    8,192 cached keys
one elementwise operation | 0 4096 4096 1 | shapes of this book | such as a ReLU
sixteen, fused | 0 4096 4096 16 | shapes of this book | sixteen elementwise operations in one
    kernel: each element still moves twice
"""
)


FORMATS = _table(
    r"""
exponent_bits fraction_bits infinities
read on 2026-11-22
fp32 | 8 23 1 | IEEE 754-2019, binary32 | the type of PyTorch's tensors unless one says otherwise
tf32 | 8 10 1 | NVIDIA 2020 | kept as fp32, 32 bits; tensor cores read 19 of them
fp16 | 5 10 1 | IEEE 754-2019, binary16 | as precise as tf32, over the narrow range of 5 bits
bf16 | 8 7 1 | Kalamkar et al. 2019 | the upper half of an fp32
fp8 e4m3 | 4 3 0 | Micikevicius et al. 2022, Table 1 | no infinities, so that the top exponent holds
    numbers; torch.float8_e4m3fn
fp8 e5m2 | 5 2 1 | Micikevicius et al. 2022, Table 1 | the upper half of an fp16; torch.float8_e5m2
"""
)


# --- GPUs -----------------------------------------------------------------------------------------
def _hardware():
    table = importlib.resources.files("coursekit").joinpath("data/hardware.csv")
    return list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))


def _gpus():
    for row in _hardware():
        dense_tflops = float(row["dense_tflops_bf16"] or row["dense_tflops_fp16"])
        kind = "bf16" if row["dense_tflops_bf16"] else "fp16"
        more = {
            name: float(row[column]) * unit
            for column, name, unit in (
                ("dense_tflops_fp8", "fp8_flops_per_second", 1e12),
                ("dense_tflops_fp4", "fp4_flops_per_second", 1e12),
                ("chip_to_chip_GBps", "chip_to_chip_bytes_per_second", 1e9),
            )
            if row[column]
        }
        yield Preset(
            row["name"],
            MappingProxyType(
                dict(
                    gpu_memory_bytes=int(row["visible_bytes"]),
                    flops_per_second=dense_tflops * 1e12,
                    memory_bytes_per_second=float(f"{row['memory_bandwidth_TBps']}e12"),
                    **more,
                )
            ),
            row["source"],
            f"sold as {row['memory_GB']} GB, {dense_tflops:g} dense {kind} TFLOP/s",
            row["verified"],
            row["read_on"],
        )


GPUS = _by_name(_gpus())
WITHOUT_BF16 = frozenset(row["name"] for row in _hardware() if not row["dense_tflops_bf16"])


# --- links ----------------------------------------------------------------------------------------
_TABLES = "ml-engineering@744d01e network/README.md"
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
        read_on="2026-11-22",
    )


LINKS = _by_name(
    [
        _link("NVLink 5 (B200)", _NVLINK, 900e9, _TABLES),
        _link("NVLink 4 (H100)", _NVLINK, 450e9, _TABLES),
        _link("NVLink 3 (A100)", _NVLINK, 300e9, _TABLES),
        _link("NVLink 2 (V100)", _NVLINK, 150e9, _TABLES),
        _link("xGMI (MI355X)", _PCIE, 535.5e9, f"{_TABLES}, to seven neighbours together"),
        _link("xGMI (MI300X)", _PCIE, 448e9, f"{_TABLES}, to seven neighbours together"),
        _link("PCIe 5 x16", _PCIE, 63e9, _TABLES),
        _link("PCIe 4 x16", _PCIE, 31e9, _TABLES),
        _link("network, 800 Gbit/s", _NETWORK, 100e9, "800 Gbit/s are 100 GB/s"),
        _link("network, 400 Gbit/s", _NETWORK, 50e9, "400 Gbit/s are 50 GB/s"),
        _link("network, 200 Gbit/s", _NETWORK, 25e9, "200 Gbit/s are 25 GB/s"),
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
        read_on=link.read_on,
    )
    for link in LINKS.values()
)


# --- protocols of NCCL ----------------------------------------------------------------------------
_CORE = "NCCL@5067397 src/graph/tuning.cc, baseLatencies and hwLatencies; NVLink inside a node"


def _protocol(name, base, node, network, share, note=""):
    """Microseconds of a collective, of a step inside a node and of one between nodes."""
    return Preset(
        name,
        MappingProxyType(
            dict(
                base_latency_seconds=base * 1e-6,
                node_latency_seconds=node * 1e-6,
                latency_seconds=network * 1e-6,
                carried_share=share,
            )
        ),
        _CORE,
        note,
        read_on="2026-11-22",
    )


PROTOCOLS = _by_name(
    [
        _protocol("ring, LL", 6.6, 0.6, 2.7, 0.5, "4 bytes of data beside 4 of flags"),
        _protocol("ring, LL128", 14.0, 1.9, 4.0, 0.92, "120 bytes of data in 128"),
        _protocol("ring, Simple", 8.4, 3.4, 14.0, 1.0, "no flags"),
        _protocol(
            "ring, Simple, several nodes",
            1.4 * 8.4,
            1.4 * 3.4,
            1.4 * 14.0,
            1.0,
            "all of it times 1.4 from Ampere on, as in ncclTopoGetAlgoTime",
        ),
        _protocol("tree, LL", 6.8, 0.6, 5.0, 0.5),
        _protocol("tree, LL128", 14.0, 1.25, 8.5, 0.92),
        _protocol("tree, Simple", 8.4, 4.0, 14.0, 1.0),
    ]
)


# --- pipelines ------------------------------------------------------------------------------------

PIPELINE_SCHEDULES = _table(
    r"""
pipeline_schedule stages_per_rank
read on 2026-11-22
GPipe | 1 1 | Huang et al. 2019
1F1B | 2 1 | Narayanan et al. 2021
eager 1F1B | 3 1 | Zhuang et al. 2023
interleaved 1F1B, v = 2 | 4 2 | Narayanan et al. 2021
interleaved 1F1B, v = 4 | 4 4 | Narayanan et al. 2021
zero-bubble H1 | 5 1 | Qi et al. 2024
zero-bubble H2 | 6 1 | Qi et al. 2024
"""
)


def _stage_seconds(name, forward, input, weight, note):
    parts = "microbatch_forward_seconds", "input_gradient_seconds", "weight_gradient_seconds"
    seconds = dict(zip(parts, (forward, input, weight)))
    source, day = "counted matrix products", "2026-11-22"
    return Preset(name, MappingProxyType(seconds), source, note, read_on=day)


STAGE_SECONDS = _by_name(
    [
        _stage_seconds(
            "1 : 1 : 1, products with weights", 0.01, 0.01, 0.01, "a product with a weight has two"
        ),
        _stage_seconds(
            "1 : 1.5 : 0.5, half attention", 0.01, 0.015, 0.005, "scores have no weights"
        ),
        _stage_seconds(
            "1 : 2 : 1, all recomputed", 0.01, 0.02, 0.01, "I begins with another forward"
        ),
    ]
)


def _kernel_row(name, seconds, note):
    """Kernels of one length; a launch takes the host 5 microseconds."""
    given = MappingProxyType(dict(kernel_seconds=seconds, launch_seconds=5e-6))
    return Preset(name, given, "chosen", note, read_on="2026-11-26")


KERNEL_ROWS = _by_name(
    [
        _kernel_row("2 µs, of a small model", 2e-6, "shorter than its launch"),
        _kernel_row("5 µs, as long as a launch", 5e-6, "as long as its launch"),
        _kernel_row("20 µs, of a larger model", 20e-6, "longer than its launch"),
    ]
)

BOOK.presets = PRESETS = MappingProxyType(
    dict(
        model=MODELS,
        recipe=RECIPES,
        kernels=KERNELS,
        gpu=GPUS,
        link=LINKS,
        node_link=NODE_LINKS,
        operation=OPERATIONS,
        number_format=FORMATS,
        protocol=PROTOCOLS,
        schedule=PIPELINE_SCHEDULES,
        stage_seconds=STAGE_SECONDS,
        kernel_row=KERNEL_ROWS,
    )
)


def quantities(**given):
    """The quantities of the named presets in one dict, as in quantities(model="GPT-2 124M",
    recipe="fp32 Adam", sequence=1024); what is given by name comes last and wins."""
    return BOOK.expand(given)
