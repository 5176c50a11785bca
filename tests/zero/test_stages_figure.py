"""The figure of what a rank keeps in each stage."""

from coursekit.topics.zero.figures import kinds_figure


def test_every_colour_has_a_name_and_every_length_its_unit():
    """Must catch: a legend that is made and not put into the figure; bytes under "kB"."""
    kept = {"stage 0": dict(parameters=4_000, gradients=4_000, optimizer=8_000)}
    figure = kinds_figure("What does rank 0 keep?", kept, "kB")
    assert figure.layout.showlegend and figure.layout.legend.y < 0
    assert [trace.name for trace in figure.data] == ["parameters", "gradients", "optimizer states"]
    assert [trace.x[0] for trace in figure.data] == [4, 4, 8] and "kB" in figure.layout.title.text
