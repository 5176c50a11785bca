"""A page for the measurements: an explorer, 40 display and 80 inline formulas; and the same page
without the formulas."""

from pathlib import Path
from shutil import copy, rmtree

from bookkit.build import build_book

DISPLAY, INLINE = 40, 80

# The kinds of formulas the chapters have; {k} makes each one different.
FORMULAS = (
    r"M_{{k}} = 2\Psi + 2\Psi + \frac{12\Psi}{N_{{k}}}",
    r"T = \frac{6 \Psi D}{N_{{k}} \cdot F \cdot \eta}",
    r"\Psi_{{k}} = L\left(12 h^2 + 13 h\right) + V h + s h",
    r"A_{{k}} = s b h L \left(34 + \frac{5 a s}{h}\right)",
    r"t_{{k}} = \frac{2 (N - 1)}{N} \cdot \frac{\Psi_{{k}}}{\beta} + 2 (N - 1) \alpha",
    (
        r"\left\lceil \frac{\Psi_{{k}}}{N} \right\rceil \leq \Psi_{{k}} \leq N \left\lceil"
        r" \frac{\Psi_{{k}}}{N} \right\rceil"
    ),
    r"\sum_{i=1}^{L} \left(4 h^2 + 2 h f_i\right) = L \left(4 h^2 + 2 h f_{{k}}\right)",
    r"\frac{p - 1}{m + p - 1} \to 0 \quad \text{as } m_{{k}} \to \infty",
)
SMALL = (
    r"\Psi_{{k}}",
    r"N_{{k}}",
    r"6 \Psi D_{{k}}",
    r"\frac{1}{{k}}",
    r"h_{{k}} \cdot a",
    r"2^{{k}}",
    r"L \leq {k}",
    r"\eta_{{k}}",
)
WORDS = (
    (
        "The memory of one rank is a sum of four terms, and each of them has a tensor behind it"
        " that one can point at"
    ),
    "What is shared between ranks shrinks with their number, and what is not shared does not",
    "A step takes as long as its slowest rank, so the sum is over one of them and not over all",
)


def formula(templates, k: int) -> str:
    return templates[k % len(templates)].replace("{k}", str(k + 2))


def page(title: str, with_formulas: bool, explorer_last: bool = False) -> str:
    """Markdown of the page; without formulas, words stand in their place."""
    explorer = "```{explorer} does-it-fit\n```"
    blocks = [] if explorer_last else [explorer]
    for k in range(DISPLAY):
        if k % 8 == 0:
            blocks.append(f"## Section {k // 8 + 1}")
        small = [
            f"${formula(SMALL, 2 * k + j)}$" if with_formulas else "this term"
            for j in range(INLINE // DISPLAY)
        ]
        blocks.append(
            f"{WORDS[k % 3]}: {small[0]} stands for what the text has just said, and {small[1]} for"
            " what it says next."
        )
        blocks.append(
            f"$$\n{formula(FORMULAS, k)}\n$$" if with_formulas else "Here stands a line of its own."
        )
    if explorer_last:
        blocks += ["## At last", explorer]
    return f"# {title}\n\n" + "\n\n".join(blocks) + "\n"


def build_sample(root: Path, folder: Path) -> dict[str, Path]:
    """Build the sample book into `folder` with the settings of the book in `root`: name -> built
    page."""
    rmtree(folder, ignore_errors=True)
    source = folder / "source"
    (source / "chapters").mkdir(parents=True)  # the book's settings know pages by their folders
    for name in ("_config.yml", "references.bib"):
        copy(root / name, source)
    pages = {
        "with-formulas": page("With formulas", True),
        "without-formulas": page("Without formulas", False),
        "explorer-last": page("The explorer last", True, explorer_last=True),
    }
    for name, text in pages.items():
        (source / "chapters" / f"{name}.md").write_text(text, encoding="utf-8")
    (source / "index.md").write_text("# Sample\n\nPages to measure.\n", encoding="utf-8")
    toc = "format: jb-book\nroot: index\nchapters:\n" + "".join(
        f"  - file: chapters/{name}\n" for name in pages
    )
    (source / "_toc.yml").write_text(toc, encoding="utf-8")
    build_book(source, folder / "html")
    built = {name: folder / "html" / "chapters" / f"{name}.html" for name in pages}
    count = (
        built["with-formulas"]
        .read_text(encoding="utf-8")
        .split('class="explorer-foot"', 1)[1]
        .count("<math")
    )
    if count < DISPLAY + INLINE:
        raise RuntimeError(f"the sample page shows {count} formulas, not {DISPLAY + INLINE}")
    return built
