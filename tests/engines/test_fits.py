"""Does it fit? The ledger, the nearest layout that fits, and what cannot be asked."""

import json
import warnings
from functools import partial

import pytest
from published import PUBLISHED
from solved import Given
from told import from_told

from coursekit.__main__ import main
from coursekit.formulas import BOOK, evaluate
from coursekit.planner.fits import fits
from coursekit.planner.layout import FUSED_LOSS, NO_TENSOR  # noqa: F401 (told.md names it)
from shardlab.common.cross_node_warning import CrossesNodes

H100 = dict(gpu="H100 SXM 80GB", sequence=8192, reserve_gb=0)
MEGATRON = dict(recipe="bf16 + fp32 gradients", kernels="Megatron-LM with Transformer Engine")
MEGATRON |= dict(microbatch=1)


def tensors_of(answer):
    """Bytes that an answer needs for tensors, with what is set aside."""
    return answer.needed_bytes - sum(answer.values[name] for name in NO_TENSOR)


@pytest.mark.slow
def test_the_lines_are_all_of_it():
    """Must catch: a category left out; a place's zero total taken for its parts."""
    for model, layout in (
        ("Llama 3 8B", dict(gpus=8)),
        ("Llama 3 8B", dict(gpus=8, zero_stage=1, microbatch=2)),
        ("Mixtral 8x7B", dict(gpus=256)),
        ("Llama 2 70B", dict(gpus=4, kernels="PyTorch eager", recipe="fp32 Adam")),
        ("Llama 3 405B", dict(gpus=2, kernels="PyTorch eager", zero_stage=1)),
        ("Llama 3 70B", dict(gpus=64, tensor_parallel=8, pipeline_parallel=4, zero_stage=1)),
        ("Mixtral 8x7B", dict(gpus=64, tensor_parallel=4, sequence_parallel=False)),
    ):
        answer = fits(model, **H100, **layout)
        assert sum(line.nbytes for line in answer.lines) == answer.needed_bytes
        for line in answer.lines:
            assert line.source and line.meaning and line.expression
            assert BOOK.find(line.quantity).unit == "bytes"


def test_the_peak_is_the_formulas():
    """Must catch: a layout translated into other quantities than it says."""
    answer = fits("Qwen3 8B", **H100, gpus=16, zero_stage=2, accumulation_steps=4)
    given = MEGATRON | dict(model="Qwen3 8B", zero_stage=2, data_parallel=16)
    given |= dict(accumulation_steps=4, sequence=8192)
    wanted = Given(**given).rank_peak_bytes
    assert tensors_of(answer) == wanted
    asked = {**H100, "gpus": 16, "zero_stage": 2, "accumulation_steps": 4}
    assert tensors_of(fits("Qwen3 8B", **{**asked, "reserve_gb": 3})) == wanted + 3 * 10**9
    usual = fits("Qwen3 8B", **{**asked, "reserve_gb": None})
    assert tensors_of(usual) == wanted + 66 * -(-wanted // 1000)
    assert usual.assumed["reserve_gb"].startswith(
        "6.6% of the peak, the most that published runs of dense"
    )


def test_the_fullest_rank_of_a_pipeline():
    """Must catch: the first rank taken where the last has the head and its logits; degrees that do
    not divide the GPUs; a place with all that a formula says of it."""
    both = dict(zero_stage=1, sequence=2048, tensor_parallel=2, pipeline_parallel=4)
    given = MEGATRON | dict(sequence_parallel=1, regather=1, data_parallel=2)
    for steps in (1, 16):
        peak = partial(evaluate, ["rank_peak_bytes"], **both, **given, accumulation_steps=steps)
        of_ranks = [
            peak(model="Llama 3 8B", pipeline_rank=rank)["rank_peak_bytes"] for rank in range(4)
        ]
        asked = H100 | both | dict(gpus=16, accumulation_steps=None if steps == 16 else steps)
        answer = fits("Llama 3 8B", **asked)
        assert tensors_of(answer) == max(of_ranks) == of_ranks[answer.values["pipeline_rank"]]
        rank, place = str(answer).splitlines()[1:3]
        assert rank.split()[3] == str(answer.values["pipeline_rank"]) and not {*place} & {*":;"}
        assert ("accumulation_steps" in answer.assumed) == (steps == 16)
    assert answer.assumed["accumulation_steps"] == "16 (--accumulation-steps)"


def test_tensor_parallelism_across_nodes(capsys):
    """Must catch: silence, or a warning where all is well; the share of a node's link for that of
    the network's; a warning in the middle of JSON."""
    asked = dict(gpus=32, tensor_parallel=16, zero_stage=1, gpu="A100 SXM 80GB", sequence=2048)
    with pytest.warns(CrossesNodes) as caught:
        answer = fits("GPT-3 175B", **asked)
    (said,) = [str(one.message) for one in caught]
    assert said.startswith("tensor_parallel = 16 on nodes of 8 GPUs:") and said in str(answer)
    given = dict(model="GPT-3 175B", recipe="bf16 + fp32 gradients", tensor_parallel=16)
    given |= dict(sequence_parallel=1, regather=1, microbatch=1, sequence=2048)
    given |= dict(gpu="A100 SXM 80GB", utilisation=0.5, node_link="NVLink 3 (A100)")
    given |= dict(latency_seconds=9.6e-6, link_bytes_per_second=8 * 25e9)
    wanted = ["tensor_message_share", "tensor_layer_message_seconds"]
    shares = {size: evaluate(wanted, **given, ranks_per_node=size) for size in (8, 16)}
    number = {
        size: f"{1000 * found['tensor_layer_message_seconds']:.3g} ms,"
        f" {100 * found['tensor_message_share']:.0f}%"
        for size, found in shares.items()
    }
    assert f"{number[8]} of its time, over 8 x network, 200 Gbit/s; inside a" in said
    assert f"over NVLink 3 (A100), they would take {number[16]}." in said
    assert shares[8]["tensor_message_share"] > 1.4 * shares[16]["tensor_message_share"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fits("GPT-3 175B", **asked, ranks_per_node=16).warning
        assert not fits("GPT-3 175B", **{**asked, "tensor_parallel": 8}).warning
        command = ["fits", "--model", "GPT-3 175B", "--gpu", "A100 SXM 80GB", "--gpus", "32"]
        main([*command, "--sequence", "2048", "--tensor-parallel", "16", "--json"])
    assert json.loads(capsys.readouterr().out)["warning"].startswith("tensor_parallel = 16")


def test_interleaved_stages():
    """The first rank keeps 1 + (p - 1)/(p v) times the activations of 1F1B (Narayanan et al. 2021).

    Must catch: stages on a rank that change nothing; 126 layers in 16 stages without a word."""
    asked = dict(gpu="B200 SXM", gpus=64, sequence=4096, tensor_parallel=8, pipeline_parallel=8)
    kept = [
        fits("Llama 3 70B", **asked, zero_stage=1, stages_per_rank=v).values["rank_saved_bytes"]
        for v in (1, 2)
    ]
    assert kept[1] / kept[0] == pytest.approx(1 + 7 / 16, rel=1e-3)
    uneven = fits("Llama 3 405B", **{**asked, "gpus": 128, "pipeline_parallel": 16}).assumed
    assert uneven["stages"].startswith("16 of 126 layers: each is counted with 8,")


def test_links_of_a_gpu():
    """Must catch: PCIe taken for the links of AMD's GPUs; one network card for a node of eight; a
    warning inside a domain of NVLink, which is larger than a node."""
    asked = dict(gpus=32, tensor_parallel=8, zero_stage=1, sequence=2048, ranks_per_node=4)
    with pytest.warns(CrossesNodes, match="over xGMI .MI300X., they would take") as caught:
        fits("Llama 3 70B", gpu="MI300X", **asked)
    assert "over 4 x network, 400 Gbit/s; inside" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gpu in ("GB200", "GB300"):
            assert not fits("Llama 3 70B", gpu=gpu, **asked).warning


@from_told("model, asked, repairs")
def test_the_nearest_that_fit(model, asked, repairs):
    """Must catch: a layout that does not fit offered, or the largest change before the smallest;
    a degree that is never tried, or that no heads or GPUs allow; another card or thousands of GPUs
    as the only advice for one GPU; recomputation where offload alone fits, none where both are
    needed, or that which is asked for already; QLoRA where LoRA fits; bf16 on a T4; adapters beside
    experts; offload without a stage of ZeRO; tiles without recomputation, or more of them than
    needed; nothing where one change is not enough; a limit of ranks, stages, GPUs or tokens that
    moved; sequences that are halved too seldom; offload that is there already, or none of it."""
    answer = fits(model, **asked)
    assert not answer.fits and "; ".join(change for change, _ in answer.nearest) == repairs
    assert all(layout.fits and f"{change}: " in str(answer) for change, layout in answer.nearest)
    host = [one["host_bytes"] for one in answer.as_json()["nearest"]]
    hosted = [layout.offload or layout.checkpoints_on_host for _, layout in answer.nearest]
    assert [nbytes > 0 for nbytes in host] == hosted
    ends = [f" GB, and {one / 1e9:,.2f} GB on the host\n" if one else " GB\n" for one in host]
    said = [line for line in f"{answer}\n".splitlines(True) if line.startswith("  --")]
    assert len(said) == len(ends) and all(map(str.endswith, said, ends))
    assert ("Nothing near fits." in str(answer)) == (not repairs)


def test_layouts_of_published_runs():
    """Llama 3 405B, and GPT-3 as Korthikanti et al. 2022 train it. Must catch: an option that is
    not handed on; scores that wait although they are made again."""
    asked = dict(gpu="H100 SXM 80GB", gpus=8192, sequence=8192, zero_stage=1)
    asked |= dict(tensor_parallel=8, pipeline_parallel=16)
    even, shorter = (fits("Llama 3 405B", **asked, shorter_ends=ends) for ends in (0, 1))
    assert even.values["pipeline_rank"] == 0 and shorter.values["pipeline_rank"] == 1
    interleaved = fits("Llama 3 405B", **asked, stages_per_rank=8, shorter_ends=1).values
    ends = interleaved["pipeline_rank"] in (0, 15)  # the embedding's stage, and the head's
    assert interleaved["rank_layers"] == 8 - ends
    assert shorter.needed_bytes < even.needed_bytes
    assert "--shorter-ends" in fits("Llama 3 405B", **asked).assumed["stages"]
    asked |= dict(gpus=64, sequence=2048, pipeline_parallel=8)
    whole, again = (fits("GPT-3 175B", **asked, recompute_policy=policy) for policy in (0, 1))
    assert "recompute_policy" not in again.assumed
    core = again.values["library_core_bytes"]
    waits = again.values["rank_held_layers"] - 1
    assert whole.needed_bytes - again.needed_bytes == pytest.approx(1.066 * waits * core, rel=1e-6)


def test_stages_that_are_cut_by_their_products():
    """Must catch: an even share for nanotron, whose head costs four layers; an option that is not
    handed on; a last stage as full as the first; operators that cost as much as the layer."""
    sizes = dict(layers=16, hidden=2048, feed_forward=8192, vocabulary=131_072)
    asked = dict(gpu="H100 SXM 80GB", gpus=8, sequence=4096, pipeline_parallel=4, zero_stage=1)
    found = fits("Llama 3 8B", **asked, kernels="nanotron")
    layers = evaluate(
        ["first_stage_layers", "last_stage_less"],
        **{**found.layout.given, **sizes, "heads": 32, "key_value_heads": 32},
        allow_unused=True,
    )
    assert layers == dict(first_stage_layers=6, last_stage_less=5)
    assert found.values["first_stage_layers"] == 9 and "9 (--first" in str(found)
    even, fuller = (
        fits("Llama 3 8B", **asked, first_stage_layers=count).values for count in (8, 11)
    )
    assert "first_stage_layers" not in fits("Llama 3 8B", **asked).assumed
    assert even["rank_layers"] == 8 and fuller["rank_layers"] == 11
    uneven = fits("Llama 3 8B", **{**asked, "pipeline_parallel": 8}, first_stage_layers=5)
    assert "stages" not in uneven.assumed
    del asked["pipeline_parallel"]
    nothing, operators, layers = (
        fits("Llama 3 8B", **asked, kernels="FSDP2, compiled", recompute_policy=policy).needed_bytes
        for policy in (0, 2, 3)
    )
    assert layers < operators < nothing


def test_from_a_shell(tmp_path, capsys):
    """Exit code 0 where it fits, 1 where not. Must catch: the code of the other answer; JSON that
    is not; an assumption that is not said."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["Llama 3 8B"]["config"]))
    asked = ["fits", "--model", str(path), "--gpu", "H100 SXM 80GB", "--sequence", "8192"]
    assert main([*asked, "--gpus", "8"]) == 0
    text = capsys.readouterr().out
    assert "8 x H100 SXM 80GB: fits." in text and "zero_stage = 3 (--zero-stage)" in text
    assert "source: Rajbhandari et al. 2020" in text and "rank_context_bytes = 787283968" in text
    assert main([*asked, "--gpus", "1"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert main([*asked, "--gpus", "8", "--zero-stage", "1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False and found["parameters"] == 8_030_261_248
    ledger = sum(line["nbytes"] for line in found["lines"])
    assert found["needed_bytes"] == ledger + found["reserve_bytes"] > ledger
    assert found["compared"].startswith(
        "on 10 published rows (allocated bytes, Megatron-LM's golden"
    )
    assert found["nearest"][0]["change"] == "--zero-stage 2"
    assert found["nearest"][0]["needed_bytes"] <= found["memory_bytes"]


def test_a_file_that_is_no_model(tmp_path, capsys):
    """Must catch: the book's models listed behind what is wrong with the file."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "whisper"}')
    asked = ["--gpu", "T4", "--gpus", "1", "--sequence", "16"]
    assert main(["fits", "--model", str(path), *asked]) == 2
    said = capsys.readouterr().err
    assert "'whisper' is an architecture that the formulas do not know" in said
    assert "models by name" not in said
