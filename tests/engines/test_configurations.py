"""Configurations of other tools: files of public repositories are read or refused by key, what is
written is read again, and the tools' own parsers take it."""

import json
import re

import pytest
from told import from_told, sample

from coursekit.__main__ import main
from coursekit.planner.configurations import read_configurations
from coursekit.planner.configurations_table import InvalidConfiguration, tools
from coursekit.planner.configurations_written import (
    fastest_written,
    kernels_of,
    knobs_of,
    written_configuration,
)
from coursekit.planner.fits import fits
from coursekit.planner.plan import plan
from coursekit.planner.search import RULES, knobs

FILES = [part.split("\n", 3) for part in sample("configurations.md").split("\n## ")[1:]]
PAIR = re.compile(r"(\w+)=(.+?)(?=, \w+=|$)")


def read(folder, name, text, **given):
    folder.joinpath(name).write_text(text, "utf-8")
    return read_configurations([folder / name], **given)


@pytest.mark.parametrize(
    "head, wanted, _, text", FILES, ids=[head.split()[0] for head, *_ in FILES]
)
def test_files_of_public_repositories(head, wanted, _, text, tmp_path):
    """Must catch: a setting that is read as another, or not at all; a file that is read although no
    formula knows its bytes; what stands between the file and memory left out."""
    name = head.split()[0]
    if wanted.startswith("refused: "):
        with pytest.raises(InvalidConfiguration) as refused:
            read(tmp_path, name, text)
        assert wanted.removeprefix("refused: ") in str(refused.value)
        return
    found = read(tmp_path, name, text)
    for quantity, value in PAIR.findall(wanted):
        if quantity == "note":
            assert any(value in note for note in found.notes)
        else:
            assert str(found.quantities[quantity]) == value, quantity
    said = str(found)
    assert all(note in said for note in found.notes) and found.as_json()["taken"] == found.taken


def test_there_are_twenty_and_each_tool_is_tried():
    """Must catch: a tool whose table no public file tries."""
    assert len(FILES) >= 20 and len({head for head, *_ in FILES}) == len(FILES)
    owners = " ".join(head.split()[1] for head, *_ in FILES)
    for owner in "DeepSpeedExamples accelerate torchtitan Megatron-LM axolotl nanotron".split():
        assert owner in owners


STAGE = '{"zero_optimization": {"stage": %s}, "train_micro_batch_size_per_gpu": 1%s}'
TOML = "[training]\nseq_len = 2048\n[parallelism]\ntensor_parallel_degree = 1\n"
ARGS = "--num-layers 2 --tensor-model-parallel-size 2 --micro-batch-size 1"


@from_told("name, text, sentence")
def test_what_cannot_be_read(name, text, sentence, tmp_path):
    """Must catch: the wrong tool's file, an unknown key, a contradiction that is read somehow; a
    sentence without the key and its line."""
    if not sentence:
        assert read(tmp_path, name, text).quantities["zero_stage"] == 3
        return
    with pytest.raises(InvalidConfiguration, match=re.escape(sentence)) as refused:
        read(tmp_path, name, text, gpus=8)
    assert re.search(r"[^?][.]$|[?]$", str(refused.value)) and "\n" not in str(refused.value)


def test_options_count_before_files_and_files_together(tmp_path, capsys):
    """Must catch: an option that a file overrides; the Trainer's recipe beside DeepSpeed's; a
    question that lacks something answered, or a question that a file completes refused."""
    tmp_path.joinpath("ds.json").write_text(STAGE % (3, ', "bf16": {"enabled": true}'))
    trainer = "per_device_train_batch_size: 1\noutput_dir: out\nmodel_name_or_path: gpt2\n"
    tmp_path.joinpath("args.yaml").write_text(
        trainer + "gradient_checkpointing: true\nmax_length: 512"
    )
    files = [tmp_path / "ds.json", tmp_path / "args.yaml"]
    found = read_configurations(files, zero_stage=2, gpus=4).quantities
    assert (found["zero_stage"], found["recompute_policy"], found["gpus"]) == (2, 3, 4)
    assert found["recipe"] == "bf16 + fp32 master" and found["model"] == "GPT-2 124M"
    command = [
        "fits",
        "--gpu",
        "H100 SXM 80GB",
        "--gpus",
        "4",
        *(f"--from={file}" for file in files),
    ]
    assert main([*command, "--zero-stage", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["read_as"] == ["DeepSpeed", "Trainer"] and "zero_stage" not in answer["assumed"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "Read as DeepSpeed and Trainer:" in said and "(ds.json, line 1): --zero-stage 3" in said
    assert "stage3_gather_16bit_weights_on_model_save is not there" in said
    with pytest.raises(SystemExit):
        main(["fits", f"--from={files[0]}", "--gpu", "H100 SXM 80GB"])
    assert "required: --model, --gpus, --sequence" in capsys.readouterr().err


AUTO = STAGE % (2, ', "bf16": {"enabled": "auto"}')
AUTO = AUTO.replace(": 1,", ': "auto",')


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, ["auto (a.json, line 1): the script decides. 1 is counted: say --microbatch."]),
        (dict(microbatch=2), []),
    ],
)
def test_what_auto_leaves_to_the_script_is_said(given, said, tmp_path):
    """Must catch: a precision or a microbatch of "auto" that is counted as fp32, or as 1, and
    listed among what changes no byte."""
    found = read(tmp_path, "a.json", AUTO, gpus=8, **given)
    decided = [note.partition(" = ")[2] for note in found.notes if "the script decides" in note]
    fp32 = "auto (a.json, line 1): the script decides. fp32 is counted: say --recipe."
    assert sorted(decided) == sorted([fp32, *said])
    assert not any("auto" in key for key in found.ignored)
    told = read(tmp_path, "a.json", AUTO, recipe="bf16 + fp32 master", microbatch=1)
    assert not any("decides" in note for note in told.notes)


def test_a_trainers_own_arguments(tmp_path):
    """Must catch: a flag that is off, among all that transformers writes, refused; FSDP's empty
    section taken for accelerate's file; a newer name of a setting not read."""
    written = dict(output_dir="out", per_device_train_batch_size=4, bf16=False, fp16=False)
    written |= dict(gradient_accumulation_steps=2, activation_checkpointing=True, deepspeed=None)
    written |= dict(fsdp=[], fsdp_config=dict(min_num_params=0), optim="adafactor", seed=42)
    found = read(tmp_path, "a.json", json.dumps(written))
    assert found.main.name == "Trainer" and found.quantities["recompute_policy"] == 3
    assert (found.quantities["microbatch"], found.quantities["accumulation_steps"]) == (4, 2)
    assert found.quantities["recipe"] == "fp32 Adam" and "seed (not known)" in found.ignored
    (note,) = found.notes
    assert note.startswith("optim = adafactor (a.json, line 1): the ledger counts Adam's")


def test_sizes_of_a_command_line(tmp_path):
    """Must catch: a model of Megatron's options that is not the model of the same sizes."""
    text = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    text += " --num-query-groups 8 --seq-length 4096 --max-position-embeddings 8192 --swiglu --bf16"
    text += " --vocab-size 128256 --position-embedding-type rope --disable-bias-linear"
    text += " --untie-embeddings-and-output-weights --tensor-model-parallel-size 2"
    text += " --micro-batch-size 1 --use-distributed-optimizer --nproc-per-node 8"
    found = read(tmp_path, "a.sh", text).quantities
    ours = dict(found, gpu="H100 SXM 80GB")
    known = fits(**dict(ours, model="Llama 3 8B")).needed_bytes
    assert fits(**ours).needed_bytes == known and found["zero_stage"] == 1
    assert found["sequence_parallel"] is False and found["recipe"] == "bf16 + fp32 gradients"


def test_flags_before_more_options_and_experts_beside_dense_layers(tmp_path):
    """Must catch: options of a variable taken for the value of the flag before it, and refused; the
    width of dense layers, of which a model of experts has none, taken for the experts'."""
    text = f"{ARGS} --hidden-size 64 --num-attention-heads 4 --vocab-size 128 --seq-length 32"
    text += " --ffn-hidden-size 256 --moe-ffn-hidden-size 96 --bf16 ${MORE_ARGS} --swiglu $LAST"
    for experts, width in ((" --num-experts 8", 96), ("", 256)):
        found = read(tmp_path, "a.sh", text + experts).quantities
        assert found["model"]["feed_forward"] == width and found["model"]["gated_mlp"] == 1
        assert found["recipe"] == "bf16 + fp32 gradients"


def test_every_row_names_a_quantity():
    """Must catch: a word of the table that no code reads; a knob that a tool has under no name."""
    for tool in tools().values():
        for setting in tool.settings:
            assert setting.quantity in ("-", "!") or setting.quantity[0] == "?" or setting.named
            assert bool(setting.words) == (
                setting.quantity[0] in "!?" or not setting.written and setting.quantity == "bucket"
            )
    written = {one.named for tool in tools().values() for one in tool.settings if one.written}
    assert set(RULES) - written == set()


ASKED = [
    ("Llama 3 8B", 8, 64, 4096, {}),
    ("Llama 3 8B", 1, 8, 1024, dict(gpu="B200 SXM")),
    ("Qwen3 8B", 8, 32, 2048, {}),
    ("Mixtral 8x7B", 64, 64, 2048, {}),
    ("Llama 3 70B", 64, 256, 8192, {}),
    ("Llama 3 70B", 64, 256, 8192, dict(pipeline_parallel=4)),
    ("Llama 3 8B", 16, 64, 4096, dict(zero_stage=0, tensor_parallel=2)),
    ("Llama 3 8B", 8, 16, 8192, dict(recompute_policy=3)),
    ("Llama 3 8B", 16, 16, 2048, dict(zero_stage=3, shard_groups=2, gpu="H200 SXM")),
]


@pytest.mark.parametrize("name", [name for name in tools() if name != "trainer"])
def test_what_is_written_is_read_again(name, tmp_path):
    """Must catch: a setting that is written under another key or value than it is read; a degree
    that the file does not say; a limit of the tool that the search does not know."""
    tool, written = tools()[name], 0
    for model, gpus, batch, sequence, more in ASKED:
        asked = dict(gpu="H100 SXM 80GB", gpus=gpus, batch=batch, sequence=sequence) | more
        limits = knobs_of(tool)
        if any(knob in limits and asked[knob] not in limits[knob] for knob in more):
            continue
        usual = dict(kernels=kernels_of(tool), recipe=tool.recipes["bf16"])
        try:
            best = plan(model, **limits | usual | asked).best
        except ValueError:  # nothing that this tool can be told is legal
            continue
        for candidate in best[:3]:
            try:
                text, outside = written_configuration(tool, candidate.layout)
            except InvalidConfiguration as said:  # DDP, or a model that the tool is not told
                whole = candidate.layout.zero_stage == 0 and name in ("torchtitan", "accelerate")
                assert whole or re.search(
                    "Llama 3 alone|is not told (experts|query_key)", str(said)
                )
                continue
            suffix = dict(command="sh").get(tool.format, tool.format)
            given = dict(outside, gpu=asked["gpu"], recipe=candidate.layout.recipe)
            if name in ("deepspeed", "accelerate"):
                given |= dict(model=model)
            again = read(tmp_path, f"a.{suffix}", text, **given).quantities
            again.pop("shard_groups", None) if candidate.layout.shard_groups == 1 else None
            answer = fits(**dict(zero_stage=candidate.layout.zero_stage) | again)
            assert knobs(answer.layout) == knobs(candidate.layout), text
            assert answer.layout.gpus == gpus and answer.needed_bytes == candidate.needed_bytes
            written += 1
    assert written >= 4, name


def test_a_plan_is_written(capsys):
    """Must catch: settings that the file leaves to a launcher passed over in silence. (What a tool
    cannot be told: test_one_sentence.)"""
    command = ["plan", "--model", "Mistral 7B", "--gpu", "H100 SXM 80GB", "--gpus", "8"]
    assert main([*command, "--batch", "64", "--sequence", "2048", "--write", "deepspeed"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["train_batch_size"] == 64
    assert "left to the script or the launcher: gpus = 8, sequence = 2048" in err


def test_megatrons_fsdp2_is_written_as_its_parser_takes_it():
    """Must catch: FSDP2 beside fused accumulation, or under a tied head, which Megatron-LM's own
    checks refuse."""
    text, layout = text_for("megatron", zero_stage=3)
    assert layout.zero_stage == 3 and "--use-torch-fsdp2" in text
    assert "--no-gradient-accumulation-fusion" in text
    with pytest.raises(InvalidConfiguration, match="no parameters of a model with a tied head"):
        text_for("megatron", "GPT-2 124M", sequence=1024, zero_stage=3, most=1)


def importable(module, package):
    return pytest.importorskip(
        module, reason=f"{package} is not installed: its parser reads what is written where it is"
    )


TWO_BY_TWO = dict(tensor_parallel=2, pipeline_parallel=2, context_parallel=1)


def text_for(name, model="Llama 3 8B", **more):
    tool = tools()[name]
    usual = dict(kernels=kernels_of(tool), recipe=tool.recipes["bf16"], gpu="H100 SXM 80GB")
    asked = dict(usual, gpus=8, batch=64, sequence=4096) | more
    found = plan(model, **knobs_of(tool) | asked)
    candidate, text, _ = fastest_written(tool, found)
    return text, candidate.layout


def test_accelerate_takes_its_file(tmp_path):
    """Must catch: a key or a value that accelerate's own reader refuses."""
    arguments = importable("accelerate.commands.config.config_args", "accelerate")
    file = tmp_path / "a.yaml"
    for more in ({}, dict(zero_stage=0, gpus=2, gpu="B200 SXM"), dict(tensor_parallel=2)):
        text, layout = text_for("accelerate", **more)
        file.write_text(text)
        config = arguments.load_config_from_file(str(file))
        assert config.num_processes == layout.gpus and config.mixed_precision == "bf16"
        assert config.distributed_type.value == ("FSDP" if layout.zero_stage else "MULTI_GPU")
        launch = importable("accelerate.commands.launch", "accelerate")
        known = {action.dest for action in launch.launch_command_parser()._actions}
        assert set(config.fsdp_config) <= known and set(config.parallelism_config) <= known


def test_deepspeed_takes_its_file():
    """Must catch: a key that DeepSpeed's own configuration does not have; batches that are not the
    product that it asks for."""
    of_zero = importable("deepspeed.runtime.zero.config", "deepspeed")
    for more in (dict(zero_stage=3), dict(zero_stage=1, offload=1), dict(zero_stage=0)):
        text, layout = text_for("deepspeed", **more)
        config = json.loads(text)
        found = of_zero.DeepSpeedZeroConfig(**config.get("zero_optimization", {}))
        assert int(found.stage) == layout.zero_stage
        device = found.offload_optimizer and found.offload_optimizer.device
        assert (device == "cpu") == bool(layout.offload)
        step = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        assert step * layout.gpus // layout.tensor_parallel == config["train_batch_size"]


def test_torchtitan_takes_its_file(tmp_path):
    """Must catch: a section or a key that torchtitan's own reader refuses."""
    manager = importable("torchtitan.config.manager", "torchtitan 0.2")
    file = tmp_path / "a.toml"
    for more in ({}, dict(recompute_policy=3), TWO_BY_TWO):
        text, layout = text_for("torchtitan", **more)
        file.write_text(text)
        config = manager.ConfigManager().parse_args([f"--job.config_file={file}"])
        assert config.parallelism.tensor_parallel_degree == layout.tensor_parallel
        assert config.parallelism.pipeline_parallel_degree == layout.pipeline_parallel
        assert config.model.flavor == "8B" and config.compile.enable
