"""Policies: what computes in which type, what a device cannot run, and the probes."""

import pytest
import torch
from torch import nn

from coursekit.machine import units
from coursekit.recordings.races import TINY
from coursekit.topics.mixed_precision import runs
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mixed_precision import LossScaler, MasterWeights, policies

CPU = torch.device("cpu")
CONFIG = GPTConfig(layers=1, hidden=16, heads=2, vocabulary=13, max_sequence=8)


def trained(policy, steps=3):
    """(losses, dtypes of what linear layers give, dtypes of the gradients, optimizer)"""
    torch.manual_seed(0)
    model = policy.prepare(GPT(CONFIG))
    optimizer = policy.optimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    scaler, seen, losses = policy.scaler(), set(), []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, y: seen.add(y.dtype))
    tokens = torch.randint(13, (4, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        with policy.step():
            with policy.forward("cpu"):
                loss = next_token_loss(model(tokens[:, :-1]).float(), tokens[:, 1:])
            scaler.scale(loss).backward()
            gradients = {p.grad.dtype for p in model.parameters() if p.grad is not None}
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, seen, gradients, optimizer


@pytest.mark.parametrize("policy", policies.POLICIES.values(), ids=policies.POLICIES)
def test_what_a_policy_computes_in(policy):
    """Losses as fp32's, to u times the 40 or so roundings of a layer. Must catch: fp16 without a
    scale, bf16 with one; autocast around backward; 16-bit weights that are updated directly; a
    loop that needs an `if` for policies without a scale."""
    losses, products, gradients, optimizer = trained(policy)
    assert products == {policy.computes_in} and gradients == {policy.weights}
    updated = {p.dtype for group in optimizer.param_groups for p in group["params"]}
    assert updated == {torch.float32}
    assert isinstance(optimizer, MasterWeights) == (policy.weights is not torch.float32)
    assert isinstance(policy.scaler(), LossScaler) == (policy.computes_in is torch.float16)
    assert policy.scaler(init_scale=8.0).get_scale() == 8 if policy.needs_scale else True
    wanted, *_ = trained(policies.FP32)
    # a CPU may take tf32 by its word, and has then the digits of fp16
    near = 40 * torch.finfo(torch.float16 if policy.tf32 else policy.computes_in).eps / 2
    assert losses == pytest.approx(wanted, rel=near) and losses[-1] < losses[0]


def test_tf32_is_a_setting_of_a_step():
    """Must catch: a setting that stays for the rest of the process."""
    before = "highest"  # PyTorch's default, whatever a test before this one left
    torch.set_float32_matmul_precision(before)
    with policies.TF32.step():
        assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(KeyError), policies.TF32.step():
        raise KeyError
    assert torch.get_float32_matmul_precision() == before
    with policies.FP32.step():
        assert torch.get_float32_matmul_precision() == before


def test_a_context_for_each_forward():
    """Must catch: one autocast context that is made once and entered for all steps."""
    layer = nn.Linear(1, 1, bias=False)
    seen = []
    for value in (1.0, 2.0, 3.0):
        nn.init.constant_(layer.weight, value)
        with policies.AUTOCAST_BF16.forward("cpu"):
            seen += [layer(torch.ones(1, 1)).item(), layer(torch.ones(1, 1)).item()]
    assert seen == [1, 1, 2, 2, 3, 3]


def test_a_device_that_cannot_run_a_policy(monkeypatch):
    """Must catch: bf16 taken for real on a T4, as torch.cuda.is_bf16_supported() has it; a policy
    named that the device cannot run either; emulation refused where nobody asked for units."""
    with pytest.raises(units.CannotCompute, match="TF32 on this cpu: it has no tf32.*Take FP32"):
        units.check_precision(policies.TF32, "cpu")
    units.check_precision(policies.FP32, "cpu", units=True)
    for policy in (policies.BF16, policies.FP16, policies.AUTOCAST_BF16, policies.AUTOCAST_FP16):
        units.check_precision(policy, "cpu")  # slowly, perhaps

    def refused(dtype, device):
        return "" if dtype is torch.float32 else f"it refuses a product of {dtype} (not today)"

    with monkeypatch.context() as patch:
        patch.setattr(units, "refusal", refused)
        with pytest.raises(units.CannotCompute, match=r"BF16 on this cpu.*not today.*Take FP16"):
            units.check_precision(policies.BF16, "cpu")

    def pretend(patch, name, capability):
        patch.setattr(torch.cuda, "get_device_name", lambda device: name)
        patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        patch.setattr(units, "refusal", lambda dtype, device: "")

    with monkeypatch.context() as patch:
        pretend(patch, "Tesla T4", (7, 5))
        for policy in (policies.FP32, policies.FP16, policies.AUTOCAST_FP16, policies.BF16):
            units.check_precision(policy, "cuda")
        for policy, instead in (
            (policies.BF16, "FP16"),
            (policies.AUTOCAST_BF16, "AUTOCAST_FP16"),
            (policies.TF32, "FP32"),
        ):
            with pytest.raises(
                units.CannotCompute, match=f"^{policy.name} on Tesla T4: .*Take {instead} "
            ):
                units.check_precision(policy, "cuda", units=True)
            units.check_precision(policies.POLICIES[instead], "cuda", units=True)
        with pytest.raises(units.CannotCompute, match="no tf32"):
            units.check_precision(policies.TF32, "cuda")
    with monkeypatch.context() as patch:
        pretend(patch, "A100", (8, 0))
        for policy in policies.POLICIES.values():
            units.check_precision(policy, "cuda", units=True)
        assert not units.has_units(torch.float8_e4m3fn, torch.device("cuda"))


def test_probes_ask_the_device(monkeypatch):
    """Must catch: a capability read from a list of names; a slow type taken for a fast one."""
    assert units.refusal(torch.bfloat16, CPU) == "" == units.refusal(torch.float16, CPU)
    with monkeypatch.context() as patch:
        error = RuntimeError('"addmm" not implemented for this type\nand more')
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: (_ for _ in ()).throw(error))
        assert units.refusal(torch.float32, CPU).endswith('("addmm" not implemented for this type)')
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: a)
    assert "is wrong" in units.refusal(torch.float32, CPU)
    for seconds, real in ((0.5, True), (2.0, False)):
        times = {torch.float32: 1.0, torch.bfloat16: seconds}
        monkeypatch.setattr(units, "seconds_of_product", times.__getitem__)
        assert units.has_units(torch.bfloat16, CPU) is real
    assert units.has_units(torch.float32, CPU) and not units.has_units("tf32", CPU)


@pytest.mark.parametrize("there", [True, False])
def test_every_cpu_races(monkeypatch, there):
    """Must catch: types without units left out, so that nothing is recorded; the large tasks, a
    step of which takes seconds there; rows that hide the emulation."""
    larger = TINY._replace(name="larger", sizes={**TINY.sizes, "hidden": 32})
    monkeypatch.setattr(runs, "has_units", lambda dtype, device: there)
    monkeypatch.setattr(runs, "EMULATED_TASK", TINY)
    found = runs.race_precision(tasks=(larger,), turns=2)
    assert [result.row for result in found] == ["precision_race.step", "precision_race.peak"] * 4
    name, tail = ("larger", "") if there else ("tiny", " on a CPU without units for it")
    both = [f"{name}, {kind}{tail}" for kind in ("bf16", "fp16")]
    whats = [f"{way}{what}" for what in both for way in ("", "core, ") for _ in ("step", "peak")]
    assert [result.case["what"] for result in found] == whats
    assert [result.most for result in found] == [1, 1, None, None] * 2


def test_both_ways_compute_in_the_same_type():
    """Must catch: torch.amp raced in the other 16-bit type, or without its scaler."""
    device = torch.device("cpu")
    for name in ("BF16", "FP16"):
        losses = [
            runs.build_training(runs.POLICIES[name], TINY, device, theirs).step()
            for theirs in (False, True)
        ]
        near = 40 * torch.finfo(runs.POLICIES[name].computes_in).eps / 2
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=near)
