"""Names beside points under a roof."""

from coursekit.topics.hardware.figures import Point, Roof, places_of_names


def test_names_keep_apart():
    """Points near each other have their names at different sides, none across the name of a roof;
    a name without room is left out.

    Must catch: one side for all; roofs that are forgotten; names that lie over each other."""
    axes = ((0.0, 4.0), (10.0, 16.0))
    near = [Point(f"{n} x {n}", n / 6, 5e10) for n in (256, 260, 264, 268, 272)]
    places = places_of_names(near, [], *axes)
    assert len(set(places[:4])) == 4 and "" not in places[:4] and places[4] == ""
    roof = Roof("this machine", 5e10, 1e10)
    right = [Point("512 x 512", 3000.0, 5e10)]
    assert places_of_names(right, [], *axes) == ["top left"]
    assert places_of_names(right, [roof], *axes) == ["bottom left"]


def test_names_lie_on_no_roof_and_under_no_other_point():
    """Must catch: a name across the line of a roof; a name right under another point."""
    axes = ((-2.0, 3.0), (7.0, 12.0))
    roof = Roof("this machine", 8e10, 6.4e9)
    on_the_slope, beside = Point("1 row", 0.5, 3.2e9), Point("4 rows", 2.0, 3.3e9)
    assert places_of_names([on_the_slope], [], *axes) == ["bottom right"]
    assert places_of_names([on_the_slope, beside], [roof], *axes) == ["top left", "bottom right"]
    flat = Point("128 x 128", 20.0, 5.6e10)
    assert places_of_names([flat], [], *axes) == ["bottom right"]
    below = Point("4 x 4", 30.0, 3.2e10)
    assert places_of_names([flat, below], [], *axes)[0] == "top left"
    assert places_of_names([flat, below], [roof], *axes)[0] == ""
