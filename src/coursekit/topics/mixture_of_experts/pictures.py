"""The still picture of chapter 15: one token, its router, two of eight experts."""

from coursekit.show.drawing import Drawing

SCORES_OF_A_TOKEN = (0.04, 0.31, 0.06, 0.10, 0.03, 0.22, 0.13, 0.11)  # of one token, by a softmax
CHOSEN = 2


def draw_two_of_eight():
    drawing = Drawing("two-of-eight", "A token, the scores of eight experts, and the two it takes")
    best = sorted(range(len(SCORES_OF_A_TOKEN)), key=lambda expert: -SCORES_OF_A_TOKEN[expert])[
        :CHOSEN
    ]
    total = sum(SCORES_OF_A_TOKEN[expert] for expert in best)
    gates = {expert: SCORES_OF_A_TOKEN[expert] / total for expert in best}
    drawing.text(0, 112, "token", "small")
    drawing.box(0, 118, 40, 26, "activations", 4)
    drawing.text(20, 136, "x", "middle ink bold")
    drawing.text(66, 14, "router: scores", "small bold")
    drawing.text(218, 14, "experts", "small bold")
    for expert, score in enumerate(SCORES_OF_A_TOKEN):
        y, taken = 24 + 28 * expert, expert in gates
        drawing.text(66, y + 16, expert, "small")
        drawing.box(80, y + 3, 200 * score, 16, "forward" if taken else "quiet")
        drawing.text(86 + 200 * score, y + 16, f"{score:.2f}", "small" + " soft" * (not taken))
        drawing.box(218, y, 62, 22, "parameters" if taken else "frame dashed", 3)
        words = "computes" if taken else "waits"
        drawing.text(249, y + 16, words, "middle small " + ("white" if taken else "soft"))
        if taken:
            drawing.arrow(180, y + 11, 216, y + 11, "communication thick")
            drawing.arrow(282, y + 11, 352, 128 if y < 128 else 136, "communication thick")
            drawing.text(292, y + (0 if y < 128 else 28), f"× {gates[expert]:.2f}", "small bold")
    drawing.box(354, 118, 46, 26, "activations", 4)
    drawing.text(377, 136, "y", "middle ink bold")
    said = " and ".join(
        f"expert {expert}, score {SCORES_OF_A_TOKEN[expert]:.2f}" for expert in sorted(best)
    )
    return drawing.svg(
        250,
        f"Left a token x. In the middle a bar for the score of each of eight experts. The two"
        f" largest, {said}, lead to experts that compute; their results, weighted by"
        f" {gates[sorted(best)[0]]:.2f} and {gates[sorted(best)[1]]:.2f}, add up to y at the right."
        " The other six experts wait.",
    )


PICTURES = {"two-of-eight": draw_two_of_eight}
