"""The explorers of chapter 12: a loader beside a GPU, and documents in rows."""

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat
from coursekit.show.pictures import CurveAxis, Curves, Line, StreamsPicture
from coursekit.show.spec import Control, Explorer, ExplorerTable, Menu, Say

_LATE = ("hiccup_microseconds", 0)  # unless: no batch is late
_ALONE = ("loader_workers", 0)  # the loop loads by itself
LOADER_AND_GPU = (
    Phase(
        "steps",
        (
            Event("late batch", LINK, "hiccup_seconds", unless=(_LATE,)),
            Repeat("full_buffer_batches", (Event("step", COMPUTE, "fed_step_seconds"),)),
            Event("step", COMPUTE, "fed_step_seconds", after=("late batch",), unless=(_LATE,)),
            Repeat(
                "shown_steps",
                (
                    Event("batch", LINK, "batch_making_seconds", unless=(_ALONE,)),
                    Event("batch", LINK, "batch_making_seconds", after=("step",), when=(_ALONE,)),
                    Event("step", COMPUTE, "fed_step_seconds", after=("batch",)),
                ),
            ),
        ),
    ),
)
_TIMES = (0, 2, 20, 200, 800, 1000, 2000, 5000, 8000, 10_000, 20_000, 50_000, 100_000)

LOADER = Explorer(
    name="feeding",
    title="Who waits for whom?",
    menus=(Menu("sample_kind", "Samples"),),
    controls=(
        Control("sample_microseconds", "a sample takes, µs", _TIMES[1:]),
        Control("loader_batch", "samples in a batch", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        Control("loader_workers", "workers (0: the loop itself)", (*range(9), 12, 16, 24, 32)),
        Control("fed_step_microseconds", "a step takes, µs", (*_TIMES[5:], 200_000, 500_000)),
        Control("buffered_batches_per_worker", "batches ahead, each worker", (1, 2, 4, 8)),
        Control(
            "hiccup_microseconds", "one batch is late by, µs", (*_TIMES[:1], *_TIMES[5:], 200_000)
        ),
    ),
    begin=dict(
        sample_kind="a slow store",
        loader_workers=1,
        buffered_batches_per_worker=2,
        hiccup_microseconds=0,
        shown_steps=6,
    ),
    pictures=(
        StreamsPicture(
            "The GPU takes what the loader has made",
            step=LOADER_AND_GPU,
            colours=(
                ("step", "steps", "timeline-forward"),
                ("batch", "batches", "timeline-communication"),
                ("late batch", "the late batch", "timeline-weight-gradient"),
            ),
            rows=("GPU", "loader"),
            idle="waits",
        ),
    ),
    sentence=(
        Say(
            "A step takes {loaded_step_seconds:short duration}, and the GPU waits for"
            " {stall_share:percent} of the time: {workers_needed:exact} worker{workers_needed:s}"
            " would feed it. "
        ),
        Say(
            "A batch that is {hiccup_seconds:short duration} late costs"
            " {hiccup_wait_seconds:short duration}: {full_buffer_batches:exact} are ready.",
            unless=(_LATE,),
        ),
    ),
    detail=(
        Say(
            "The GPU asks for {asked_bytes_per_second} and gets {delivered_bytes_per_second}. One"
            " batch comes out of the loader every {batch_making_seconds:short duration}. "
        ),
        Say(
            "Batches that a worker makes ahead: {buffered_batches_per_worker:exact}.",
            unless=(_ALONE,),
        ),
    ),
    table=ExplorerTable(
        "Workers that each kind of sample needs, and the wait with one",
        "sample_kind",
        (
            ("workers needed", "workers_needed", "exact"),
            ("asked for", "asked_bytes_per_second", "bandwidth"),
            ("waits, one worker", "stall_share", "percent", (("loader_workers", 1),)),
            ("waits, four", "stall_share", "percent", (("loader_workers", 4),)),
        ),
    ),
    adds=(("loaded_step_seconds", "a step, with its loading"),),
    why=(
        "batch_making_seconds",
        "loaded_step_seconds",
        "workers_needed",
        "stall_share",
        "full_buffer_batches",
        "hiccup_wait_seconds",
        "asked_bytes_per_second",
    ),
    outputs=("loaded_step_seconds", "workers_needed", "hiccup_wait_seconds"),
)

LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 700, 768, 1000, 1024, 1500, 2048)
LENGTHS += (3000, 4096, 6000, 8192, 16_384, 32_768, 65_536, 100_000)
PACKING = Explorer(
    name="packing",
    title="What does a packer throw away?",
    menus=(Menu("document_kind", "Documents"),),
    controls=(
        Control("document_tokens", "tokens of a document", LENGTHS),
        Control("sequence", "tokens of a row", (256, 512, 1024, 2048, 4096, 8192)),
        Control("documents", "documents", (1000, 10_000, 100_000, 1_000_000)),
    ),
    begin=dict(document_kind="a web page", sequence=2048, documents=100_000),
    pictures=(
        Curves(
            title="Padding, or thrown away, by the length of documents",
            sweep="document_tokens",
            stops=LENGTHS,
            x=CurveAxis(
                "tokens of a document, logarithmic", "exact", ticks=(16, 256, 4096, 65_536)
            ),
            y=CurveAxis("share of a row, or of all tokens", "percent", log=False),
            lines=(
                Line("padded_row_share", "single: padding"),
                Line("whole_row_share", "whole: padding"),
                Line("cropped_share", "cut: thrown away"),
            ),
            point="padded_row_share",
            words="{padded_row_share:percent}",
        ),
    ),
    sentence=(
        Say(
            "With one document in a row, {padded_row_share:percent} of the row is padding; with"
            " {documents_in_row:exact} whole document{documents_in_row:s},"
            " {whole_row_share:percent}. Full rows that cut the last document throw"
            " {cropped_share:percent} of all tokens away."
        ),
    ),
    detail=(
        Say(
            "{documents:count} documents need {whole_rows:count} rows; a longer one is cut."
            " Equal lengths are the hardest to pack: of mixed ones, small ones fill the gaps."
        ),
    ),
    table=ExplorerTable(
        "Rows of 2,048 tokens, documents of one length",
        "document_kind",
        (
            ("padding, one in a row", "padded_row_share", "percent"),
            ("padding, whole ones", "whole_row_share", "percent"),
            ("thrown away, cut", "cropped_share", "percent"),
        ),
    ),
    adds=(("cropped_share", "thrown away where the last document is cut"),),
    outputs=("padded_row_share", "whole_row_share", "cropped_share", "whole_rows"),
)
