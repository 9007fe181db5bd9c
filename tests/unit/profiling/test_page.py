import re
import sys

import plotly.graph_objects
import pytest
import torch

import penstock as ps
from penstock.errors import MissingExtraError
from penstock.profiling.rows import InstanceRow
from penstock.profiling.view.graph_figure import graph_figure
from penstock.profiling.view.graph_layout import lay_out
from penstock.profiling.view.row_layout import lay_out_rows
from tests.unit.profiling.tree_page import counts_of, data_of, entry, profile_trees

pytestmark = pytest.mark.usefixtures("interpreted_loops")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    run = profile_trees()
    run.save_html(path)
    return run, *data_of(path)


def test_the_counts_on_a_page_are_those_of_the_profile(page):
    run, text, _ = page
    graph = run.calls[0].graph
    assert counts_of(text) == {
        "calls": 1,
        "instances": 2,
        "launches": 3,
        "rows": 8,
        "primitives": sum(len(context.nodes) for context in graph.contexts),
        "frames": len(graph.contexts),
    }


def test_a_page_shows_the_program_the_summary_and_the_explanation(page):
    run, text, _ = page
    for part in (str(run.calls[0].program), run.summary(), run.explain()):
        assert part.splitlines()[-1].replace("<", "&lt;").replace(">", "&gt;") in text


def test_a_page_needs_no_network(page):
    _, text, _ = page
    own = text.replace(text[text.index("<script>") : text.index('<script type="app')], "")
    assert "http" not in own
    assert "<link" not in own


def test_every_primitive_is_drawn_once_and_can_be_clicked_on(page):
    run, _, data = page
    nodes = [node for context in run.calls[0].graph.contexts for node in context.nodes]
    traces = [trace for trace in data["figures"]["graph0"]["data"] if "customdata" in trace]
    keys = [key for trace in traces for key in trace["customdata"] if key in data["details"]]
    assert (len(keys), len(set(keys))) == (len(nodes), len(nodes))


def test_a_block_tells_the_line_of_user_code_that_it_was_made_from(page):
    _, _, data = page
    (found,) = (
        detail
        for key, detail in data["details"].items()
        if key.startswith("graph") and detail["title"].startswith("Block total:add")
    )
    source = found["source"]
    assert "tree_page.py" in source["text"]
    (line,) = (text for number, text in source["excerpt"] if number == source["line"])
    assert "the line of the sum" in line


def test_the_timeline_has_a_bar_for_each_launch_darker_with_more_rows(page):
    run, _, data = page
    bars = data["figures"]["timeline"]["data"][-1]
    assert [launch.rows for launch in run.launches] == [5, 2, 1]
    reds = [int(re.match(r"rgb\((\d+)", colour).group(1)) for colour in bars["marker"]["color"]]
    assert reds[0] < reds[1] < reds[2]
    assert bars["y"] == ["cpu"] * 3
    assert data["figures"]["timeline"]["data"][0]["y"].count("building") == len(run.builds)
    assert {t["width"] for t in data["figures"]["widths"]["data"]} == {0.9}  # blocks may alternate
    widths = {x: y for t in data["figures"]["widths"]["data"] for x, y in zip(t["x"], t["y"])}
    assert widths == {0: 5, 1: 2, 2: 1}


def test_the_nodes_of_a_tree_are_coloured_by_their_launch(page):
    _, _, data = page
    edges, nodes = data["figures"]["rows0"]["data"]
    assert sorted(nodes["marker"]["color"]) == [0, 0, 0, 1, 2]
    assert edges["x"].count(None) == 4


def test_figures_are_what_the_drawing_library_takes(page):
    _, _, data = page
    assert set(data["figures"]) == {"timeline", "widths", "graph0", "rows0"}
    for figure in data["figures"].values():
        plotly.graph_objects.Figure(figure)


def test_text_cannot_end_the_script_that_carries_it(tmp_path):
    f = ps.function(lambda x: x.sin(), name="</script><b>")
    f.save_html(tmp_path / "page.html", torch.ones(2))
    text, data = data_of(tmp_path / "page.html")
    assert "</script><b>" not in text
    assert any("</script><b>" in detail["title"] for detail in data["details"].values())


def test_a_function_writes_a_page_of_one_call(tmp_path):
    tree = ps.data.Tree.from_nested((0, 1))
    entry.save_html(tmp_path / "page.html", tree)
    text, _ = data_of(tmp_path / "page.html")
    assert counts_of(text)["instances"] == 1
    assert counts_of(text)["rows"] == 3


def test_a_placed_program_has_a_line_for_each_device(tmp_path):
    @ps.function
    def there_and_back(x):
        with ps.device("cpu:1"):
            y = torch.sin(x)
        with ps.device("cpu:0"):
            return torch.cos(y)

    there_and_back.save_html(tmp_path / "page.html", torch.ones(2))
    text, data = data_of(tmp_path / "page.html")
    assert "<td>cpu:0<td>1<td>0<td>1</tr>" in text
    assert "<td>cpu:1<td>1<td>1<td>0</tr>" in text
    assert set(data["figures"]["timeline"]["data"][-1]["y"]) == {"cpu:0", "cpu:1"}


def test_rows_are_followed_from_device_to_device(tmp_path):
    @ps.function
    def total(tree, i):
        if tree.is_leaf(i):
            with ps.device("cpu:1"):
                return tree.token[i].float().sin()
        children = total(tree, tree.left(i)), total(tree, tree.right(i))
        with ps.device("cpu:0"):
            return (children[0] + children[1]).cos()

    trees = [ps.data.Tree.from_nested(((0, 2), 3)), ps.data.Tree.from_nested((1, 1))]
    with ps.profile() as run:
        total.map(trees, [int(tree.root) for tree in trees])
    rows = run.calls[0].trail.rows_of(0)
    assert sorted(len(row.needs) for row in rows) == [0, 0, 0, 2, 2]
    run.save_html(tmp_path / "page.html")
    _, data = data_of(tmp_path / "page.html")
    assert data["figures"]["rows0"]["data"][0]["x"].count(None) == 4
    names = [trace.get("name") for trace in data["figures"]["graph0"]["data"]]
    assert {"Block on cpu:0", "Block on cpu:1"} < set(names)


def test_without_the_drawing_library_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError) as error:
        entry.save_html(tmp_path / "page.html", ps.data.Tree.from_nested((0, 1)))
    assert str(error.value) == (
        "save_html: the drawing library is not installed.\n"
        "  missing  plotly\n"
        "  extra    view\n"
        "Install it: pip install 'penstock[view]'"
    )
    assert not (tmp_path / "page.html").exists()


def test_an_empty_profile_has_a_page(tmp_path):
    with ps.profile() as run:
        pass
    run.save_html(tmp_path / "page.html")
    assert counts_of(data_of(tmp_path / "page.html")[0])["launches"] == 0


def test_a_node_is_below_what_it_needs_inside_its_frame():
    graph = entry.graph(ps.data.Tree.from_nested((0, 1)))
    layout = lay_out(graph)
    assert len(layout.frames) == len(graph.contexts)
    for source, target in layout.edges:
        above, below = layout.marks[source], layout.marks[target]
        if above.context == below.context:
            assert above.y > below.y
    for mark in layout.marks:
        frame = layout.frames[mark.context]
        assert frame.left < mark.x < frame.right
        assert frame.bottom < mark.y < frame.top
    places = {(mark.x, mark.y) for mark in layout.marks}
    assert len(places) == len(layout.marks)


def test_rows_are_above_the_middle_of_what_they_needed():
    needs = [(), (), (), (0, 1), (2, 3)]
    places = lay_out_rows([InstanceRow(None, each) for each in needs])
    assert [place.y for place in places] == [0, 0, 0, 1, 2]
    assert len({place.x for place in places[:3]}) == 3
    assert places[3].x == (places[0].x + places[1].x) / 2


def test_rows_that_need_the_same_do_not_hide_each_other():
    places = lay_out_rows([InstanceRow(None, each) for each in [(), (0,), (0,), (0,), (1, 2)]])
    assert len({(place.x, place.y) for place in places}) == 5


def test_a_crowded_graph_labels_blocks_and_calls_only(monkeypatch):
    graph = entry.graph(ps.data.Tree.from_nested((0, 1)))
    monkeypatch.setattr("penstock.profiling.view.graph_figure.CROWDED", 5)
    figure, _ = graph_figure(graph, "graph")
    kinds = {trace["name"]: trace for trace in figure["data"] if "name" in trace}
    assert not any(kinds["Compute"]["text"])
    assert all(kinds["Compute"]["hovertext"])
    assert all(kinds["Block"]["text"] + kinds["Call"]["text"] + kinds["frame ends"]["text"])
