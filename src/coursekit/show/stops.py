"""Where sliders stop, and where lines are evaluated: ascending values."""

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def powers_of_two(least, most):
    """least, 2 least, 4 least ... up to most."""
    return tuple(least << k for k in range((most // least).bit_length()))


def steps_of_ten(least, most, steps=(1, 1.5, 2, 3, 5, 7)):
    """1, 1.5, 2, 3, 5, 7, 10 ... between two powers of ten, as whole numbers."""
    return tuple(int(step * 10**k) for k in range(least, most) for step in steps) + (10**most,)


def spread(least, most, count):
    """`count` whole numbers from least to most, the same ratio apart, or as nearly as whole numbers
    can be."""
    return tuple(
        dict.fromkeys(round(least * (most / least) ** (k / (count - 1))) for k in range(count))
    )


# The formatter would put each number on a line of its own.
# fmt: off
HIDDEN_SIZES = (
    256, 512, 768, 1024, 1280, 1536, 1600, 2048, 2560, 3072,
    4096, 5120, 6144, 7168, 8192, 10_240, 12_288, 14_336, 16_384, 20_480,
)
FEED_FORWARD_SIZES = (
    1024, 2048, 3072, 4096, 5120, 6144, 6400, 8192, 10_240, 11_008,
    12_288, 13_824, 16_384, 20_480, 24_576, 28_672, 32_768, 49_152, 65_536,
)
# fmt: on
IN_A_NODE = (1, 2, 4, 8)
HEADS = (1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 48, 64, 80, 96, 128)
