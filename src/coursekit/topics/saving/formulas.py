"""Saving: how large a checkpoint is, how long it takes, and how often to make one."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import square_root, where

BOOK.given_beside(__file__)

_YOUNG = "Young 1974; Daly 2006 for the terms that Young leaves out"
_BYTES = "tests/saving/test_saving.py::test_bytes_of_a_checkpoint"
_OFTEN = "tests/saving/test_saving_formulas.py::test_how_often_to_save"


class Checkpoints(BOOK.section(source="shardlab.saving", measured_by=_OFTEN)):
    @BOOK.own(measured_by=_BYTES)
    def checkpoint_bytes_per_parameter(q):
        r"""\beta_\text{ckpt} | bytes | bytes of a checkpoint for each parameter: the parameter and
        its moments, no gradient; a master copy is stored instead of the parameter, which is made
        from the copy"""
        return (
            where(q.master_element_bytes > 0, q.master_element_bytes, q.parameter_element_bytes)
            + q.optimizer_moments * q.moment_element_bytes
        )

    @BOOK.own(measured_by=_BYTES)
    def checkpoint_bytes(q):
        r"""M_\text{ckpt} | bytes | bytes of a checkpoint, all ranks together, without names and
        step counters"""
        return q.checkpoint_bytes_per_parameter * q.parameters

    @BOOK.own(source="definition")
    def checkpoint_seconds(q):
        r"""\tau_\text{ckpt} | seconds | time that the run waits for a checkpoint to be written"""
        return q.checkpoint_bytes / q.storage_bytes_per_second

    @BOOK.own(source=_YOUNG)
    def save_interval_seconds(q):
        r"""\tau_\text{save} | seconds | training time between two checkpoints for which the least
        time is lost, if the time between failures is much longer than the time of a checkpoint"""
        return square_root(2 * q.checkpoint_seconds * q.failure_seconds)

    @BOOK.own(source=_YOUNG)
    def save_lost_fraction(q):
        r"""\pi_\text{lost} | fraction | share of the time that goes into checkpoints and into
        repeated work: half an interval for each failure"""
        return q.checkpoint_seconds / q.save_interval_seconds + q.save_interval_seconds / (
            2 * q.failure_seconds
        )

    @BOOK.own(source="Daly 2006")
    def failures_lost_fraction(q):
        r"""\pi_\text{fail} | fraction | share of the time that failures cost in all: checkpoints,
        repeated work, and after each failure the time until the run goes on"""
        return q.save_lost_fraction + q.restart_seconds / q.failure_seconds
