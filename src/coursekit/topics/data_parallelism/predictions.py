"""Wrong numbers that readers of lab 5 lock, and what they come from: four ranks, 28 parameter
tensors, 224,256 bytes in float64."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips

ONE_CALL = "An all-reduce is one call on each rank, however many others take part."
ALL_OF_IT = "Each rank keeps all of Adam's states: nothing is shared out among the ranks."

TWO_MOMENTS = (
    "On each rank 28,032 parameters have two moments of 8 bytes each, and 28 tensors a counter."
)

PREDICTIONS = {
    "tensors alike after one step alone": Slips(
        (
            Slip(
                "The copies start alike, but each has stepped by gradients of its own.", number=28
            ),
            Slip(
                "Every tensor takes part in every loss, biases and norms as well: each rank has"
                " another gradient of it.",
                number=1,
                upto=27,
            ),
            Slip(
                "Tensors are counted, not elements or percent, and there are 28 of them.",
                number=29,
                upto=1e6,
            ),
        ),
        general=False,
    ),
    "server: messages that rank 0 sends": Slips(
        (
            Slip("That is one copy: the server sends each tensor to three others.", number=28),
            Slip("The server has its own copy: it sends to three others, not to four.", number=112),
            Slip("Not all pairs talk: only rank 0 sends, to three others.", number=252),
            Slip("That is sent and received; what rank 0 sends is half of it.", number=168),
            Slip(
                "Two for each tensor: rank 0 sends a new parameter to three others, and only"
                " receives gradients.",
                number=56,
            ),
            Slip(
                "Sent by all four ranks: only rank 0 sends parameters, 28 to each of three.",
                number=336,
            ),
            Slip(
                "The model goes tensor by tensor: 28 messages to each of three.", number=0, upto=27
            ),
            Slip(
                "Each of 28 tensors goes once to each of three others, in a message of its own.",
                number=29,
                upto=83,
            ),
            Slip(
                "Rank 0 sends parameters alone, once to each of three others: gradients come in.",
                number=85,
                upto=1e6,
            ),
        ),
        within=0,
        general=False,
    ),
    "for each tensor: messages": Slips(
        (
            Slip(
                "Sum and result are one call: an all-reduce leaves the sum everywhere.", number=56
            ),
            Slip("A ring sends six times for a rank: the log counts calls of it.", number=168),
            Slip("Around a ring bytes are 1.5 times as many: calls are not.", number=42),
            Slip("Gradients alone are summed: no loss, and no message about them.", number=29),
            Slip("One message for the model: here each tensor has its own.", number=1),
            Slip("Messages are counted, not bytes.", number=10_000, upto=1e6),
            Slip("Each of 28 tensors, also a bias, is one all-reduce.", number=0, upto=27),
            Slip(ONE_CALL, number=30, upto=9_999),
        ),
        within=0,
        general=False,
    ),
    "buckets: messages": Slips(
        (
            Slip("No tensor is cut, so buckets hold more than 50,000 bytes.", number=4.2, upto=11),
            Slip("Sum and result are one call: an all-reduce leaves the sum everywhere.", number=8),
            Slip("Bytes fill a bucket, and an element has 8.", number=0.1, upto=0.9),
            Slip("The sums travel in buckets, and there are 28 tensors to sum.", number=0),
            Slip("What fills no bucket in the end is one, too; an element has 8 bytes.", number=3),
            Slip("Each tensor is smaller than a bucket: several share one.", number=28),
            Slip("One bucket for everything: each closes at 50,000 bytes.", number=1),
            Slip("A bucket closes at 50,000 bytes, so two do not hold 224,256.", number=2),
            Slip("A ring sends six times for a rank: the log counts calls of it.", number=24),
            Slip(ONE_CALL, number=12, upto=27),
            Slip(
                "Messages, not bytes: several tensors share a bucket, one call on each rank.",
                number=29,
                upto=1e6,
            ),
        ),
        within=0,
        general=False,
    ),
    "left before the last gradient": Slips(
        (
            Slip("The last bucket waits for the last gradient, and leaves after it.", number=4),
            Slip("That is without overlap: a full bucket leaves in the middle.", number=0),
            Slip(
                "All but the last bucket are full before the last gradient.", number=0.5, upto=2.5
            ),
            Slip("A bucket leaves whole: the last one has not left.", number=3.1, upto=3.9),
            Slip("Calls of one rank: a bucket is one on each.", number=12),
            Slip("There are four buckets: they hold all 28 tensors.", number=5, upto=1e6),
        ),
        within=0,
        general=False,
    ),
    "waiting that overlap saves, percent": Slips(
        (
            Slip(
                "The last of five buckets leaves after the last gradient: nothing hides it.",
                number=93,
                upto=100,
            ),
            Slip("No more than all of the waiting can be saved.", number=101, upto=1e6),
            Slip("A share, where percent are asked for.", number=0.05, upto=0.99),
            Slip("The link works while backward computes: that is hidden.", number=0),
            Slip(
                "Four of five buckets leave during backward: what they hide is saved, up to the"
                " last bucket's part.",
                number=2,
                upto=82,
            ),
            Slip(
                "Overlap sends the same bytes, earlier: as a rule it saves.", number=-100, upto=-1
            ),
        ),
        within=3,
    ),
    "optimizer states on each rank, bytes": Slips(
        (
            Slip(ALL_OF_IT, times=1 / 4),
            Slip(
                "Adam keeps two moments of each parameter, of 8 bytes in float64: that is one, or"
                " two of 4 bytes.",
                number=224_256,
            ),
            Slip("12 bytes a parameter: two moments in float64 are 16.", number=336_384),
            Slip("Parameters or gradients are no optimizer states: two moments are.", times=1.5),
            Slip("Parameters and gradients are no optimizer states: two moments are.", times=2),
            Slip("Those are all four ranks, and one is asked for.", times=4),
            Slip("Elements of both moments, or a quarter of one: all are kept.", number=56_064),
            Slip("That is the number of parameters: two moments of 8 bytes each.", number=28_032),
            Slip(TWO_MOMENTS, number=1, upto=430_000),
            Slip(TWO_MOMENTS, number=470_000, upto=1e12),
            Slip("A tensor has a counter, and two moments besides.", number=28),
            Slip("The counters alone: each tensor has two moments as well.", number=112),
        ),
    ),
    "eight H100s without overlap wait, percent": Slips(
        (
            Slip("That is with overlap: without it all messages wait for the end.", number=6),
            Slip("Half of the gradients: an all-reduce sends 7/8 of them twice.", number=11),
            Slip("Backward of this size takes longer than all gradients travel.", number=50),
            Slip("That is the share that computes.", number=80),
        ),
    ),
}

ELSEWHERE = {
    "waiting that overlap saves, percent": Elsewhere(
        said="the room's own: these ranks stay on the CPU"
    ),
}
