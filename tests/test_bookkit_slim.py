"""Fewer bytes, the same page: what is taken out of pages and scripts changes nothing that is seen, said or run."""

import re

import pytest
import rjsmin

from bookkit.offline import OURS
from bookkit.shorten import shorten
from bookkit.slim import slim_drawing, slim_page


@pytest.mark.parametrize("page, slim", [
    ("<ul>\n <li>a</li>\n\n <li>b <a>c</a>\n d</li></ul>", "<ul><li>a</li><li>b <a>c</a>\nd</li></ul>"),
    ("<p>a <b>b</b> <i>c</i></p>", "<p>a <b>b</b> <i>c</i></p>"),
    ("<div><pre>a\n  b\n\n</pre> </div>", "<div><pre>a\n  b\n\n</pre></div>"),
    ("<script>a\n\n b</script>", "<script>a\n\n b</script>"),
    ('<td class="text-left"><p>a</p></td>', "<td>a</td>"),
    ('<th class="head text-right"><p>a <b>b</b></p></th>', '<th class="text-right">a <b>b</b></th>'),
    ("<td><p>a</p><p>b</p></td>", "<td><p>a</p><p>b</p></td>"),
    ('<span class="bp">self</span><span class="o">.</span><span class="mi">1</span>', 'self.<span class="mi">1</span>'),
    ('<code class="docutils literal notranslate"><span class="pre">a</span> <span class="pre">b</span></code>', "<code>a b</code>"),
    ('<li class="toctree-l1"><a class="reference internal" href="a">b</a></li>', '<li class="toctree-l1"><a href="a">b</a></li>'),
    ('<details class="sd-sphinx-override sd-dropdown sd-card sd-mb-3" open>\n<summary class="sd-summary-title sd-card-header">a</summary>',
     '<details class="sd-dropdown" open><summary>a</summary>'),
])
def test_slim_page(page, slim):
    """Mutations: white space between words taken, or that of code; two paragraphs of a cell made one; a number in code left without
    its colour; a dropdown that stands open closed; a second run that changes what the first left."""
    assert slim_page(page) == slim + "\n" and slim_page(slim_page(page)) == slim + "\n"


def test_a_style_that_stands_often_in_a_drawing_stands_once():
    """Under a name of that drawing's own; not where there is no name, or where there are classes already.

    Mutations: a style that stands once moved too; the same class in two drawings; a drawing's own style taken."""
    box = '<rect style="fill: red"/>'
    drawing = f'<svg style="fill: red" aria-labelledby="one-title one-text">\n {box}\n {box}{box}<path style="fill: blue"/></svg>'
    slim = slim_drawing(drawing)
    assert slim == ('<svg style="fill: red" aria-labelledby="one-title one-text"><style>.one-title-0{fill: red}</style>'
                    + 3 * '<rect class="one-title-0"/>' + '<path style="fill: blue"/></svg>')
    assert slim_drawing(slim) == slim
    for other in (drawing.replace("aria-labelledby", "data-x"), drawing.replace("<path", '<path class="x"')):
        assert slim_drawing(other).count("style=") == 5


@pytest.mark.parametrize("code, short", [
    ("function far(near){return near+far}", "function a(b){return b+a}"),
    ("var near=1,other=near;", "var a=1,b=a;"),
    ("x.near=function(near){return{near:near}}", "x.near=function(a){return{near:a}}"),
    ("const{near,far:wide}=x,one={near,far:near?wide:near};", "const{near:a,far:b}=x,c={near:a,far:a?b:a};"),
    ("list.map((one,[two,three])=>one+two+three)", "list.map((a,[b,c])=>a+b+c)"),
    ("const near={draw(wide){return wide},near:1};near.near", "const a={draw(b){return b},near:1};a.near"),
    ("for(let near=0,last=9;near<last;near++)f(near)", "for(let a=0,b=9;a<b;a++)f(a)"),
    ("try{f()}catch(refused){g(refused)}", "try{f()}catch(a){g(a)}"),
    ("var near=\"near\"+/near[/]near/.test('near');", "var a=\"near\"+/near[/]near/.test('near');"),
    ("var name=1,near=a,far=b;", "var name=1,c=a,d=b;"),
    ("var near=[1,far,near];far", "var a=[1,far,a];far"),
    ("function f(near,far=near){g(far)}", "function c(a,b=a){g(b)}"),
])
def test_shorten(code, short):
    """Mutations: a property, a key or a string renamed; the key lost where it is a variable too; a name taken that is the browser's, or
    that the file uses undeclared; one name given twice."""
    assert _same(made := shorten(code), short), made


def _same(one, other):
    """Whether two scripts are equal but for the letters a to h, each of which is one letter of the other throughout: which letter a
    name gets is not what is tested."""
    pairs = {}
    first, second = (re.split(r"\b([a-h])\b", text) for text in (one, other))
    if first[::2] != second[::2]:
        return False
    return all(pairs.setdefault(a, b) == b for a, b in zip(first[1::2], second[1::2])) and len(set(pairs.values())) == len(pairs)


def test_shorten_refuses_what_it_does_not_know():
    """Mutation: read on, and take the text of a template for code."""
    for code in ("var a=`x`;", "class A{}", "with (a) b;"):
        with pytest.raises(ValueError, match="shorten.py does not know"):
            shorten(code)


@pytest.mark.parametrize("name", sorted(path.name for path in OURS.glob("*.js")))
def test_our_scripts_keep_what_others_name(name):
    """Strings, properties and keys are those of the source, in its order; and a fifth of the bytes or more goes.

    Mutations: a part of a script left out; a key renamed in one file that another reads."""
    code = rjsmin.jsmin((OURS / name).read_text(encoding="utf-8"))
    short = shorten(code)
    for pattern in (r'"[^"]*"', r"[\w\])]\.(\w+)"):
        assert re.findall(pattern, short) == re.findall(pattern, code)
    assert len(short) < 0.85 * len(code)
