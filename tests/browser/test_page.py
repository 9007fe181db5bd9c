"""The page in a real browser: it loads without network, shows the counts, and reacts to clicks."""

import os
import shutil

import pytest

from tests.unit.profiling.tree_page import profile_trees

#: None for the one that `make browser` fetched.
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "PENSTOCK_BROWSER" not in os.environ,
    reason="needs a browser: chromium is not on the path; make browser fetches one",
)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser, tmp_path):
    """The page of a profile, what it asked for, and what went wrong in it."""
    run = profile_trees()
    run.save_html(tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body[data-ready=yes]", timeout=60_000)
    yield run, page, asked, wrong
    page.close()


def test_the_page_loads_alone_and_without_complaints(opened):
    _, page, asked, wrong = opened
    assert asked == [page.url]
    assert wrong == []


def test_the_page_shows_and_draws_what_ran(opened):
    run, page, _, _ = opened
    assert page.inner_text("#count-launches") == str(len(run.launches))
    assert page.inner_text("#count-rows") == "8"
    assert page.locator("#rows0 path.point").count() == 5
    nodes = sum(len(context.nodes) for context in run.calls[0].graph.contexts)
    ends = 2 * len(run.calls[0].graph.contexts)
    assert page.locator("#graph0 path.point").count() == nodes + ends
    assert page.locator("#widths .bars path").count() == len(run.launches)


def test_a_click_on_a_block_shows_its_source_line(opened):
    _, page, _, _ = opened
    assert not page.is_visible("#panel")
    block = page.locator("#graph0 .trace", has=page.locator("path.point")).locator("path.point")
    names = page.locator("#graph0 .textpoint").all_text_contents()
    place = next(number for number, name in enumerate(names) if name.startswith("add"))
    block.nth(place).scroll_into_view_if_needed()
    block.nth(place).click(force=True)
    assert "Block total:add" in page.inner_text("#panel h3")
    assert "the line of the sum" in page.inner_text("#panel .here")
    page.click("#panel button")
    assert not page.is_visible("#panel")


def test_a_click_on_a_node_of_the_tree_shows_its_launch(opened):
    _, page, _, _ = opened
    point = page.locator("#rows0 path.point").last
    point.scroll_into_view_if_needed()
    point.click(force=True)
    assert page.inner_text("#panel h3").startswith("Launch 2: total:add")
    assert "rows: 1 of 2 instances" in page.inner_text("#panel")


def test_the_graph_zooms_and_pans(opened):
    _, page, _, _ = opened
    figure = page.locator("#graph0")
    figure.scroll_into_view_if_needed()
    ranges = "document.getElementById('graph0').layout.xaxis.range.slice()"
    box = figure.bounding_box()
    middle = box["x"] + box["width"] / 3, box["y"] + box["height"] / 2
    before = page.evaluate(ranges)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"({ranges})[0] != {before[0]}")
    zoomed = page.evaluate(ranges)
    assert zoomed[1] - zoomed[0] < before[1] - before[0]
    page.mouse.down()
    page.mouse.move(middle[0] + 80, middle[1], steps=4)
    page.mouse.up()
    page.wait_for_function(f"({ranges})[0] != {zoomed[0]}")
    panned = page.evaluate(ranges)
    assert panned[0] < zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])
