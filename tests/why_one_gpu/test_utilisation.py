"""The utilisation of a run from its tokens a second, beside runs that others published."""

import pytest

from coursekit.formulas import evaluate, quantities

# llm-foundry@8c8dd48, scripts/train/benchmarking/README.md: parameters, layers, hidden, sequence,
# GPU, GPUs, tokens a second of one GPU, and the MFU that it prints
PUBLISHED = (
    (64_862_437_376, 80, 8192, 2048, "H100 SXM 80GB", 512, 1007, 0.4125),
    (6_658_859_008, 32, 4096, 2048, "H100 SXM 80GB", 256, 10_119, 0.4415),
    (6_918_905_856, 32, 4096, 65_536, "H100 SXM 80GB", 8, 1956, 0.2859),
    (13_011_240_960, 40, 5120, 32_768, "A100 SXM 80GB", 8, 1016, 0.5169),
    (1_315_950_592, 24, 2048, 2048, "A100 SXM 40GB", 128, 18_647, 0.5441),
)


@pytest.mark.parametrize("parameters, layers, hidden, sequence, gpu, gpus, each, mfu", PUBLISHED)
def test_published_utilisations(parameters, layers, hidden, sequence, gpu, gpus, each, mfu):
    """Within 0.2%, since the table's rates are rounded. Must catch: scores that count forward only,
    GPUs left out, a rate per GPU taken for one of all, and weights counted with 8 operations
    because the run recomputes."""
    found = evaluate(
        ["model_flops_utilisation", "model_flops_utilisation_with_scores"],
        **quantities(
            parameters=parameters,
            layers=layers,
            hidden=hidden,
            sequence=sequence,
            gpu=gpu,
            gpus=gpus,
            tokens_per_second=gpus * each,
        ),
    )
    assert found["model_flops_utilisation_with_scores"] == pytest.approx(mfu, rel=2e-3)
    weights = 6 * parameters / (6 * parameters + 12 * layers * hidden * sequence)
    assert found["model_flops_utilisation"] == pytest.approx(weights * mfu, rel=2e-3)
