"""The figure of what a rank keeps and sends."""

from coursekit.topics.tensor_parallelism.figures import mlp_figure, shares_figure


def test_what_was_measured_is_at_its_number_of_ranks():
    """Must catch: a mark at another number of ranks, or beside the other line; bytes under "kB"."""
    lines = {"kept": [64_000, 32_000, 16_000], "sent": [0, 4_000, 6_000]}
    figure = shares_figure("One MLP", (1, 2, 4), lines, 4, (16_000, 6_000))
    kept, kept_here, sent, sent_here = figure.data
    assert list(kept.y) == [64, 32, 16] and list(sent.y) == [0, 4, 6]
    assert (kept_here.x[0], kept_here.y[0]) == (2, 16) and (sent_here.x[0], sent_here.y[0]) == (
        2,
        6,
    )
    assert [trace.name for trace in (kept, sent_here)] == ["kept, by formula", "sent, measured"]


def test_the_figure_of_the_lab_agrees_with_what_its_ranks_measure():
    """Must catch: elements drawn as bytes; a formula of another collective."""
    on_ranks = [dict(weights_kept=2_048, bytes_sent=6_144)] * 4  # what the lab's run finds
    kept, kept_here, sent, sent_here = mlp_figure(on_ranks).data
    assert kept.y[2] == kept_here.y[0] == 16.384 and sent.y[2] == sent_here.y[0] == 6.144
    assert kept.y[0] == 4 * kept.y[2] and sent.y[0] == 0
