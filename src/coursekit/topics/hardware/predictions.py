"""Wrong numbers that readers of lab 2 lock, and what they come from. Machines differ, so most are
told by their ratio to the measured number."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips
from coursekit.formulas.speeds import link_rates

PREDICTIONS = {
    "large fp32 product, GFLOP/s": Slips(
        (
            Slip(
                "Half: an operation is a multiplication or an addition, 2 n^3 of them.", times=0.5
            ),
            Slip("Twice: of 16 bits, or counted twice, as 2 n^3 counts both operations.", times=2),
            Slip("That is the rate of 16 bits, as datasheets print it.", times=10),
            Slip("TFLOP/s, or a CPU's rate: a GPU has thousands of units.", times=1e-5, upto=0.01),
            Slip(
                "A smaller machine's, or a few operations in each cycle of a core: vector units do"
                " 16 or more, and a large product keeps them busy, because it uses each number"
                " often.",
                times=0.01,
                upto=0.75,
            ),
            Slip(
                "That is what a datasheet promises, in 16 bits or of many cores at once: fp32 here"
                " reaches a part of it.",
                times=1.25,
                upto=30,
            ),
            Slip("That is a large GPU's, as its datasheet prints it.", times=30, upto=1e6),
        ),
    ),
    "memory, GB/s": Slips(
        (
            Slip("Half: a copy reads each byte and writes it, and both count.", times=0.5),
            Slip("Twice: read and written bytes are both counted, once each.", times=2),
            Slip("Gbit/s: a byte has eight bits.", times=8),
            Slip(
                "TB/s, or a disk's, a network's, PCIe's or a slower memory's.",
                times=0.001,
                upto=0.35,
            ),
            Slip(
                "One way alone, or a part of it: a copy reads each byte and writes it, and both"
                " count.",
                times=0.35,
                upto=0.75,
            ),
            Slip(
                "A datasheet's, of all channels of the memory or all lanes of a link, or Gbit/s: a"
                " copy gets a part of it.",
                times=1.25,
                upto=20,
            ),
            Slip(
                "That is a large GPU's, of its memory or links, or a cache's.", times=20, upto=1e4
            ),
        ),
    ),
    "16 rows, times as long as 1": Slips(
        (
            Slip("As many operations more; but the matrix comes from memory once.", number=16),
            Slip(
                "That holds where memory is the bound to the end: here arithmetic begins to count.",
                number=1,
            ),
            Slip("Upside down, or less: 16 rows take no less time than one.", number=0, upto=0.7),
            Slip(
                "More than there are operations, or percent: the matrix stays as it is.",
                number=17,
                upto=1e9,
            ),
            Slip(
                "So nearly free they are while memory is the bound: here arithmetic counts.",
                times=0.05,
                upto=0.8,
            ),
            Slip(
                "The matrix comes from memory once for all 16 rows: one row waits for it as long.",
                times=1.2,
                upto=16,
            ),
        ),
        within=0.25,
    ),
    "smallest operation, microseconds": Slips(
        (
            Slip("That is in nanoseconds.", times=1000),
            Slip("That is in milliseconds.", times=1e-3),
            Slip(
                "Milliseconds, or the addition's nanosecond alone: Python and PyTorch start it.",
                number=1e-5,
                upto=0.02,
            ),
            Slip(
                "Memory's latency, Python's call or the kernel alone: a call has all of them, and"
                " PyTorch looks at types and devices, and chooses the kernel.",
                times=0.005,
                upto=0.75,
            ),
            Slip(
                "A call is a few thousand instructions and waits for nothing: so long takes a wait"
                " for a GPU, or a large tensor.",
                times=1.25,
                upto=40,
            ),
            Slip(
                "All 200 calls, a whole step or nanoseconds: microseconds of one are asked for.",
                times=40,
                upto=2e4,
            ),
        ),
    ),
    "small message, microseconds": Slips(
        (
            Slip("The way there and back: a message is half of it.", times=2),
            Slip("Halved twice: a message is half of the round trip.", times=0.5),
            Slip(
                "Seconds, or 4 bytes over the bandwidth: what takes the time is to begin.",
                number=1e-5,
                upto=0.02,
            ),
            Slip(
                "Milliseconds, or memory's latency: each message begins with calls of the library,"
                " and the other process has to wake up.",
                times=1e-4,
                upto=0.002,
            ),
            Slip(
                "That is a wire's, a faster link's or a kernel's start: each message begins with"
                " calls of Python and the library, and the other process has to wake up.",
                times=0.002,
                upto=0.75,
            ),
            Slip(
                "That is a network's, or a slower path's: these ranks are in one machine.",
                times=1.25,
                upto=100,
            ),
            Slip(
                "Nanoseconds, or a network's across the world: these ranks are in one machine.",
                times=100,
                upto=1e5,
            ),
        ),
    ),
    "link, GB/s": Slips(
        (
            Slip("Both ways: a link's rate is one way.", times=2),
            Slip("Gbit/s: a byte has eight bits.", times=8),
            Slip("Halved: bytes are counted once, and a message is half a round trip.", times=0.5),
            Slip("That is memory's rate: a message is copied more than once.", of="memory, GB/s"),
            Slip("TB/s, or a slow network's: these ranks are near.", times=1e-4, upto=0.01),
            Slip(
                "That is a network's, or a slower path's than these ranks have.",
                times=0.01,
                upto=0.75,
            ),
            Slip(
                "A fast network's, memory's or a datasheet's: a library copies a message on its"
                " way, and one process waits for the other.",
                times=1.25,
                upto=10,
            ),
            Slip(
                "A datasheet's, of NVLink or PCIe: ranks without such a link send through the CPU's"
                " memory, and ranks with one get a part of what is printed.",
                times=10,
                upto=500,
            ),
            Slip(
                "MB/s, or a large GPU's memory: a message goes from one rank to the other.",
                times=500,
                upto=5000,
            ),
        ),
    ),
}

ELSEWHERE = {
    "large fp32 product, GFLOP/s": Elsewhere(
        row="matmul.rate", case={"dtype": "float32"}, number=lambda rate: rate / 1e9
    ),
    "memory, GB/s": Elsewhere(row="roofline.memory", number=lambda rate: rate / 1e9),
    "16 rows, times as long as 1": Elsewhere(
        said="the room's own: near 1 where products are fast beside memory, as on a GPU"
    ),
    "smallest operation, microseconds": Elsewhere(
        row="roofline.launch", number=lambda seconds: seconds * 1e6
    ),
    "small message, microseconds": Elsewhere(),
    "link, GB/s": Elsewhere(virtual=lambda: link_rates("H100 SXM 80GB")[0] / 1e9),
}
