"""Wrong numbers that readers of lab 2 lock, and what they come from. Machines differ, so most are
told by their ratio to the measured number."""

from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "large fp32 product, GFLOP/s": Slips(
        (
            Slip(
                "Half: an operation is a multiplication or an addition, 2 n^3 of them.", times=0.5
            ),
            Slip("TFLOP/s, where GFLOP/s are asked for.", times=1e-3),
            Slip("That is the rate of 16 bits, as datasheets print it.", times=10),
        ),
    ),
    "memory, GB/s": Slips(
        (
            Slip("Half: a copy reads each byte and writes it, and both count.", times=0.5),
            Slip("Gbit/s: a byte has eight bits.", times=8),
        ),
    ),
    "16 rows, times as long as 1": Slips(
        (
            Slip("As many operations more; but the matrix comes from memory once.", number=16),
            Slip(
                "That holds where memory is the bound to the end: here arithmetic begins to count.",
                number=1,
            ),
        ),
        within=0.25,
    ),
    "smallest operation, microseconds": Slips(
        (
            Slip("That is in nanoseconds.", times=1000),
            Slip("That is in milliseconds.", times=1e-3),
            Slip(
                "The addition itself takes a nanosecond. Python and PyTorch start it.", number=0.001
            ),
        ),
    ),
    "small message, microseconds": Slips(
        (
            Slip("The way there and back: a message is half of it.", times=2),
            Slip("4 bytes over the bandwidth: what takes the time is to begin.", number=0.001),
        ),
    ),
    "link, GB/s": Slips(
        (
            Slip("Both ways: a link's rate is one way.", times=2),
            Slip("Gbit/s: a byte has eight bits.", times=8),
        ),
    ),
}
