"""Wrong numbers that readers of lab 4 lock, and what they come from: four ranks, chunks of 1, 10,
100 and 1,000; 1,001 elements of fp32; 1 MB over 12.5 MB/s."""

from coursekit.exercises.elsewhere import LINK_SET, Elsewhere
from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "reduce-scatter, on rank 2": Slips(
        (
            Slip("Nobody has added, or it is the chunk of rank 1: both are 100.", number=100),
            Slip("That is rank 2's own part: those of the others are added to it.", number=300),
            Slip("That is the chunk of rank 3: chunks are counted from 0.", number=10_000),
            Slip("That is all chunks together: each rank keeps one of them.", number=11_110),
            Slip("The parts of ranks 0, 1 and 2: rank 3 brings 400.", number=600),
            Slip("The parts of ranks 1, 2 and 3: rank 0 brings 100.", number=900),
            Slip("The parts of the others: rank 2's own, 300, is in the sum.", number=700),
            Slip("Rank r brings (r + 1) times the array, not r times.", number=6),
            Slip("That is chunk 0, of rank 0: rank r keeps chunk r.", number=10),
            Slip("That is rank 2's own array: it keeps one chunk, of the sum.", number=3_333),
            Slip("That is the mean: a reduce-scatter leaves the sum.", number=250),
            Slip("That is an array of one rank: four are added up, chunk by chunk.", number=1_111),
            Slip("That is the part of rank 3 alone: all four are added up.", number=400),
        ),
        general=False,
    ),
    "ring, rank 0 sends, bytes": Slips(
        (
            Slip("That is one of the two rounds: after the sums they are handed out.", times=1 / 2),
            Slip("Each round leaves out a chunk: 2 (n - 1) / n arrays, not 2.", number=8_008),
            Slip("One array: two rounds of three chunks each are one and a half.", number=4_004),
            Slip("That is what all four ranks send together.", number=24_024),
            Slip("That is the naive way: a ring sends chunks.", number=12_012),
            Slip("One chunk, or an array's elements: six chunks leave, of fp32.", number=1_001),
            Slip("Four arrays: around the ring a rank sends one and a half.", number=16_016),
            Slip("Five chunks: three leave in each of the two rounds.", number=5_005),
        ),
        ranks=4,
    ),
    "naive, rank 0 sends, bytes": Slips(
        (
            Slip("One copy of the sum: it goes to three ranks.", number=4_004),
            Slip("All that travels, in both directions: half of it comes in.", number=24_024),
            Slip("Rank 0 sends nothing to itself: three copies.", number=16_016),
            Slip("That is a ring: here the whole sum goes out, three times.", number=6_004),
            Slip("Two copies of the sum: there are three other ranks.", number=8_008),
            Slip("One copy's elements: three copies go out, of 4 bytes an element.", number=1_001),
        ),
        ranks=4,
    ),
    "latency, microseconds": Slips(
        (
            Slip("As fast as memory: a message wakes up another process.", number=0.1),
            Slip("As fast as a switch between GPUs: here two processes take turns.", number=2),
            Slip("As fast as a cluster's network card: here two processes take turns.", number=5),
            Slip("As slow as a network: these processes share a machine.", number=1_000),
        )
    ),
    "bandwidth, GB/s": Slips(
        (
            Slip("That is Gbit/s: eight bits are a byte.", times=8),
            Slip("That is a link between GPUs: here bytes are copied by the CPU.", number=450),
            Slip("That is a link between GPUs: here bytes are copied by the CPU.", number=900),
            Slip("That is MB/s: GB/s are asked for.", times=1_000),
            Slip("That is TB/s: GB/s are asked for.", times=1 / 1_000),
            Slip("That is bytes a second: GB/s are asked for.", times=1e9),
            Slip("That is a PCIe link to a GPU: here bytes are copied by the CPU.", number=32),
            Slip("That is a PCIe link to a GPU: here bytes are copied by the CPU.", number=64),
            Slip("As fast as memory: a message is copied more than once.", number=50),
            Slip("A network of 100 Gbit/s: here bytes are copied by the CPU.", number=12.5),
            Slip("A network of 1 Gbit/s: here no byte leaves the machine.", number=0.125),
        )
    ),
    "ring over the slow link, ms": Slips(
        (
            Slip("One array over the link: a ring moves one and a half, each way.", number=80),
            Slip("100 Mbit are 12.5 MB, not 100: eight bits are a byte.", number=15),
            Slip("One array at 100 MB/s: bits are taken for bytes.", number=10),
            Slip("100 Mbit are 12.5 MB, not 125: eight bits are a byte.", number=12),
            Slip("Half an array: six chunks cross, and four are an array.", number=40),
            Slip("One of the two rounds, or half of the chunks.", number=60),
            Slip("The two directions share no time: each has the link for itself.", number=240),
            Slip("Two arrays: each round leaves out a chunk, so it is one and a half.", number=160),
            Slip("One chunk: six of them cross, one after the other.", number=20),
            Slip(
                "All that four ranks send: one rank in each host sends over the link.", number=480
            ),
            Slip("That is a tree: a ring sends chunks, in both directions at once.", number=320),
            Slip("Eight times too long: 12.5 MB/s are divided by 8 already.", number=960),
        ),
        within=0.15,
    ),
    "tree over the slow link, ms": Slips(
        (
            Slip("Two arrays come to the first host, and two go back.", number=160),
            Slip("One array: two come to the first host, and two go back.", number=80),
            Slip("100 Mbit are 12.5 MB, not 100: eight bits are a byte.", number=40),
            Slip("As a ring: but a tree sends whole arrays.", number=120),
            Slip("Three arrays: two come to the first host, and two go back.", number=240),
            Slip("All six messages of a tree: two of them stay inside the hosts.", number=480),
            Slip(
                "Eight arrays: there are six messages, and two stay inside the hosts.", number=640
            ),
            Slip("100 Mbit are 12.5 MB, not 125: eight bits are a byte.", number=32),
            Slip("One chunk: a tree sends whole arrays.", number=20),
        ),
        within=0.15,
    ),
    "a in a mismatched order": Slips(
        (
            Slip("That is the sum that was meant: rank 3 brings its b to it.", number=1_111),
            Slip("That is b: ranks 0, 1 and 2 bring their a.", number=2_222),
            Slip("Rank 3 brings 2,000 instead of 1,000, and not besides.", number=3_111),
            Slip("Rank 3 is left out: its first all-reduce meets the others' first.", number=111),
            Slip("That is what rank 3 holds as a: it met the others' b.", number=1_222),
            Slip("Nothing is lost and nobody fails: equal sizes are summed.", number=0),
            Slip("Each all-reduce sums one tensor of each rank, not a and b.", number=3_333),
            Slip("That is rank 3's b alone: the others bring 1, 10 and 100 to it.", number=2_000),
            Slip("That is what rank 0 brings: an all-reduce leaves a sum on each rank.", number=1),
        ),
        within=0,
        general=False,
    ),
}

ELSEWHERE = {
    "latency, microseconds": Elsewhere(said="the room's own: these messages stay on the CPU"),
    "bandwidth, GB/s": Elsewhere(said="the room's own: these messages stay on the CPU"),
    "ring over the slow link, ms": Elsewhere(said=LINK_SET),
    "tree over the slow link, ms": Elsewhere(said=LINK_SET),
}
