"""Chapter 1: does it fit, and how long?"""

from .checker import Exercise, Misconception


def _states(parameters):
    return 16 * parameters


states_bytes_of_fp32_adam = Exercise(
    name="states_bytes",
    reference=_states,
    cases=(dict(parameters=1), dict(parameters=124_439_808), dict(parameters=175_000_000_000)),
    misconceptions=(
        Misconception(lambda parameters: 4 * parameters,
                      "that is the parameters alone; backward makes a gradient for each, and Adam keeps two moments for each."),
        Misconception(lambda parameters: 8 * parameters,
                      "parameters and gradients are there; Adam's two moments are not."),
        Misconception(lambda parameters: 12 * parameters,
                      "Adam keeps two tensors for every parameter, a first and a second moment; or the gradients are missing."),
        Misconception(lambda parameters: 20 * parameters,
                      "in fp32 the parameters are their own master copy: there is no fifth tensor."),
    ),
    right="4 bytes of parameter, 4 of gradient, 8 of moments: 16 for every parameter.",
)


def _seconds(parameters, tokens, flops_per_second):
    return 6 * parameters * tokens / flops_per_second


training_seconds_from_rate = Exercise(
    name="training_seconds",
    reference=_seconds,
    cases=(dict(parameters=1_000, tokens=50, flops_per_second=2e3), dict(parameters=175e9, tokens=300e9, flops_per_second=28e12)),
    misconceptions=(
        Misconception(lambda parameters, tokens, flops_per_second: 2 * parameters * tokens / flops_per_second,
                      "2 operations per parameter and token is the forward pass; backward does twice as many again."),
        Misconception(lambda parameters, tokens, flops_per_second: 3 * parameters * tokens / flops_per_second,
                      "a multiplication and an addition are two operations, so each pass over a parameter counts 2, not 1."),
        Misconception(lambda parameters, tokens, flops_per_second: 6 * parameters * tokens * flops_per_second,
                      "operations divided by operations per second are seconds; you multiplied."),
        Misconception(lambda parameters, tokens, flops_per_second: 6 * parameters / flops_per_second,
                      "that is one token; the run has many."),
    ),
    right="2 operations forward and 4 backward for every parameter and token, over the rate.",
)
