"""How long training takes: floating-point operations over the rate at which they are done. Floats,
not exact counts."""

from coursekit.formulas.registry import BOOK

BOOK.given_beside(__file__)

_KAPLAN = "Kaplan et al. 2020, section 2.1"
_FOUNDRY = "tests/why_one_gpu/test_states.py::test_published_utilisations"
_DEFINITION = "definition"


class Time(
    BOOK.section(
        source=_DEFINITION,
        measured_by="tests/engines/test_formulas.py::test_time_is_work_over_rate",
    )
):
    @BOOK.own(source=_KAPLAN, measured_by="tests/engines/test_formulas.py::test_matmul_flops")
    def training_flops(q):
        """C | FLOP | operations of the whole training: 2 per parameter per token forward, 4
        backward; no attention scores"""
        return 6 * q.parameters * q.tokens

    @BOOK.own(
        source="Narayanan et al. 2021, appendix, which counts all scores",
        measured_by="tests/engines/test_formulas.py::test_matmul_flops",
    )
    def matmul_flops_per_token(q):
        r"""C_\text{token} | FLOP | operations of all matrix products of a training step, per token,
        attention scores included: all of them, or the half that a causal mask leaves"""
        return (
            6 * q.matrix_parameters
            + 3 * (2 - q.causal_half) * q.layers * q.attended_columns * q.sequence
        )

    def achieved_flops_per_second(q):
        """F_n | FLOP/s | rate at which the GPUs together do useful work"""
        return q.gpus * q.flops_per_second * q.utilisation

    def training_seconds(q):
        r"""\tau_\text{train} | seconds | time of the whole training"""
        return q.training_flops / q.achieved_flops_per_second

    def training_days(q):
        r"""\tau_\text{days} | days | time of the whole training in days of 86,400 seconds"""
        return q.training_seconds / 86400


# --- backwards: the utilisation of a run that was measured ----------------------------------------
class Backwards(BOOK.section(source=_DEFINITION, measured_by=_FOUNDRY)):
    def model_flops_utilisation(q):
        r"""\eta_\text{run} | fraction | share of the datasheet's rate that a run achieves, at 6
        operations per parameter per token; recomputation does not count"""
        return 6 * q.parameters * q.tokens_per_second / (q.gpus * q.flops_per_second)

    @BOOK.own(source="Chowdhery et al. 2022 (PaLM), appendix B")
    def model_flops_utilisation_with_scores(q):
        r"""\eta_\text{scores} | fraction | the same share with all attention scores counted, as
        many reports print it"""
        return (
            (6 * q.parameters + 12 * q.layers * q.hidden * q.sequence)
            * q.tokens_per_second
            / (q.gpus * q.flops_per_second)
        )
