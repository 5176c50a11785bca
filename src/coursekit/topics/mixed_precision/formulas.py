"""Mixed precision: the numbers that a format has, what rounds to zero or to infinity and what an
update can change, with a loss scale, with stochastic rounding and with a scale for each block.

A format is named as `number_format="fp16"`. Values of formats are powers of two, or a few of them
added, so they are exact in Python and on the page.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, maximum, power_of_two, square_root, where

BOOK.given_beside(__file__)

_IEEE = "IEEE 754-2019; Micikevicius et al. 2022 for e4m3"
_SCALING = "Micikevicius et al. 2018, section 3.2"
_PATTERNS = "tests/mixed_precision/test_mixed_precision_formulas.py::test_every_pattern"
_ROUNDS = "tests/mixed_precision/test_mixed_precision_formulas.py::test_thresholds"
_SPACING = "tests/mixed_precision/test_mixed_precision_formulas.py::test_spacing_and_lost_updates"
_SCALED = "tests/mixed_precision/test_mixed_precision_formulas.py::test_loss_scale_of_a_backward"
_NOISE = "tests/mixed_precision/test_mixed_precision_formulas.py::test_noise_of_stochastic_rounding"
_BLOCKS = "tests/mixed_precision/test_mixed_precision_formulas.py::test_bytes_of_mx_and_nvfp4"
_CACHE = "tests/mixed_precision/test_mixed_precision_formulas.py::test_cache_of_autocast"


class TheNumbersOfAFormat(BOOK.section(source=_IEEE, measured_by=_PATTERNS)):
    def number_bits(q):
        r"""n_\text{bit} | count | bits of a number: the sign, the exponent, the fraction; a tf32
        number uses 19 of the 32 bits that store it"""
        return 1 + q.exponent_bits + q.fraction_bits

    def exponent_bias(q):
        r"""n_\text{bias} | count | number that is added to an exponent before it is stored, so that
        no stored exponent is negative"""
        return -1 + power_of_two(q.exponent_bits - 1)

    def least_exponent(q):
        r"""x_\text{min} | exponent | exponent of the smallest normal number; below it all numbers
        have the same spacing"""
        return 1 - q.exponent_bias

    def greatest_exponent(q):
        r"""x_\text{max} | exponent | exponent of the largest number: one more where no exponent is
        reserved for infinities"""
        return q.exponent_bias + (1 - q.infinities)

    def relative_spacing(q):
        r"""\varepsilon | number | distance from 1 to the next larger number:
        torch.finfo(dtype).eps"""
        return power_of_two(-q.fraction_bits)

    def largest_number(q):
        r"""w_\text{max} | number | the largest finite number: torch.finfo(dtype).max"""
        return power_of_two(q.greatest_exponent) * (
            2 - where(q.infinities > 0, q.relative_spacing, 2 * q.relative_spacing)
        )

    def smallest_normal(q):
        r"""w_\text{norm} | number | the smallest number that has all fraction bits:
        torch.finfo(dtype).smallest_normal"""
        return power_of_two(q.least_exponent)

    def smallest_subnormal(q):
        r"""w_\text{sub} | number | the smallest number above zero, which has one bit left;
        subnormal numbers, below the normal ones, lose a bit with each halving"""
        return q.smallest_normal * q.relative_spacing

    @BOOK.own(source="definition")
    def range_binades(q):
        r"""x_\text{range} | exponent | number of powers of two in the format, from the smallest
        number above zero up: the room for gradients"""
        return q.greatest_exponent - q.least_exponent + q.fraction_bits + 1


class WhatRoundingLoses(BOOK.section(source=_IEEE, measured_by=_ROUNDS)):
    def underflow_threshold(q):
        """w_0 | number | largest size that becomes zero: half of the smallest number, a tie that
        goes to the even neighbour, zero"""
        return q.smallest_subnormal / 2

    def overflow_threshold(q):
        r"""w_\infty | number | size from which on no number of the format is near enough: half a
        spacing beyond the largest number. fp16 and bf16 make such numbers infinite; a cast to e4m3
        makes them NaN or the largest number, depending on the version of PyTorch, and in e4m3 the
        tie itself still goes to the largest"""
        return q.largest_number + power_of_two(q.greatest_exponent) * q.relative_spacing / 2

    @BOOK.own(measured_by=_SPACING)
    def spacing_exponent(q):
        r"""x_\text{own} | exponent | exponent that decides the spacing: below the normal numbers,
        the spacing stays the same"""
        return maximum(q.value_exponent, q.least_exponent)

    @BOOK.own(measured_by=_SPACING)
    def number_spacing(q):
        r"""w_\text{gap} | number | distance from a number of this exponent to the next larger one,
        the unit in the last place"""
        return power_of_two(q.spacing_exponent) * power_of_two(-q.fraction_bits)

    @BOOK.own(measured_by=_SPACING)
    def lost_update(q):
        r"""u_\text{lost} | number | size below which an update leaves every weight of this exponent
        unchanged: half a spacing. Below a power of two the spacing is half as large, and so is this
        size"""
        return q.number_spacing / 2


class TheLossScale(BOOK.section(source=_SCALING, measured_by=_SCALED)):
    def lost_gradient(q):
        """g_0 | number | largest size at which a gradient of one microbatch becomes zero when its
        loss is divided by the number of microbatches in a step and multiplied by the loss scale"""
        return q.underflow_threshold * q.accumulation_steps / q.loss_scale

    def largest_loss_scale(q):
        r"""\lambda_\text{max} | number | size that a loss scale must stay below, or the largest
        gradient overflows"""
        return q.overflow_threshold / q.largest_gradient


class NoiseOfRounding(
    BOOK.section(source="variance of a sum of independent roundings", measured_by=_NOISE)
):
    def drift(q):
        r"""u_\text{sum} | number | sum of equal updates; stochastic rounding gives the same sum on
        average"""
        return q.update_size * q.updates

    def update_rest(q):
        r"""u_\text{rest} | number | spacing minus an update that is smaller than the spacing: the
        distance from the updated weight to the next number"""
        return q.number_spacing - q.update_size

    def rounding_noise(q):
        r"""u_\text{noise} | number | standard deviation of a weight after these updates with
        stochastic rounding, if no update is larger than a spacing"""
        return square_root(q.drift * maximum(q.update_rest, 0))


class BytesOfABlock(BOOK.section(source="Dettmers et al. 2022", measured_by=_BLOCKS)):
    def block_scales(q):
        r"""n_\text{scale} | count | scales of a tensor that has one for each block of elements"""
        return ceil_div(q.scaled_elements, q.block_elements)

    def block_scaled_bytes(q):
        r"""M_\text{block} | bytes | bytes of a tensor with a scale for each block, such as an 8-bit
        moment or an fp8 tensor: its elements, the scales of its blocks, and the scale of the
        tensor"""
        return (
            ceil_div(q.scaled_element_bits * q.scaled_elements, 8)
            + q.scale_bytes * q.block_scales
            + q.tensor_scale_bytes
        )

    def block_scaled_element_bytes(q):
        r"""w_\text{byte} | number | bytes of such a tensor, scales and all, for each element"""
        return q.block_scaled_bytes / q.scaled_elements

    @BOOK.own(source="torch.autocast", measured_by=_CACHE)
    def autocast_cache_bytes(q):
        r"""M_\text{cast} | bytes | bytes of the 16-bit copies of parameters that autocast keeps
        until its context ends"""
        return q.compute_element_bytes * q.cached_parameters
