"""The page with the timeline: what is in it, and what it does in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import DataLoader
from headrace.insight.figures import Setup
from headrace.insight.timeline import timeline_data, timeline_page
from tests.insight.recorded import Recorder, ends_of, indices, recorded, span_of

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TWO = Setup("processes", workers=2, cores=2)


def two_samples(number: int) -> Any:
    """Two workers, each of which makes a batch in 20 ms: samples of 4 and 8 ms, then 5 ms to collate, 1 ms to pack."""
    begun = 10 * number
    times = {"n_samples": 2, "slowest": 1, "slowest_ns": 8_000_000, "ends": ends_of(begun + 4, begun + 12)}
    return span_of(begun, 12, 5, 1, cpu=10_000_000, **times)


def small(monkeypatch: Any, n: int = 20) -> Recorder:
    recorder = recorded(monkeypatch, [(3, 7)] * n, two_samples)
    work = [made._replace(keys=indices(2 * made.number, 2 * made.number + 1).array) for made in recorder.work]
    recorder.work.clear()
    recorder.work.extend(work)
    return recorder


def test_the_page_has_the_verdict_and_all_spans(monkeypatch):
    data = timeline_data(small(monkeypatch), TWO)
    assert data["rows"] == ["worker 0", "worker 1", "training loop"]
    assert data["verdict"].startswith("The model waited 30 % of the time. Fetching samples is the bottleneck")
    assert len(data["work"]) == len(data["turns"]) == 20
    third = data["work"][3]
    assert third["at"] == [1, 0, 3, *(ms * 1_000_000 for ms in (30, 42, 47, 48)), 10_000_000]
    assert (third["keys"], third["ends"], third["count"]) == ([6, 7], [34_000_000, 42_000_000], 2)


def test_the_page_asks_for_nothing_from_elsewhere(monkeypatch):
    page = timeline_page(small(monkeypatch), TWO)
    assert "/*DATA*/" not in page
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["data:,"]
    assert "default-src 'none'" in page


def test_keys_cannot_break_out_of_the_page(tmp_path):
    loader = DataLoader(dict.fromkeys(("</script><b>", "b"), 1), sampler=["</script><b>", "b"], batch_size=1)
    assert len(list(loader)) == 2
    loader.timeline(tmp_path / "timeline.html")
    page = (tmp_path / "timeline.html").read_text()
    assert "</script><b>" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["work"][0]["keys"] == ["</script><b>"]


def test_nothing_yet_is_a_page_too():
    assert timeline_data(Recorder(), Setup())["rows"] == ["training loop"]
    titles = [timeline_data(Recorder(), Setup("threads", workers))["title"] for workers in (0, 1, 2)]
    assert titles == ["no workers", "threads, 1 worker", "threads, 2 workers"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if BROWSER is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with all that it complained of and asked for."""

    def __init__(self, browser: Any, path: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(viewport={"width": 1300, "height": 700})
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.getElementById('chart').dataset.to !== undefined")

    def view(self) -> tuple[float, float]:
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return tuple(self.page.evaluate("[+chart.dataset.from, +chart.dataset.to]"))

    def point(self, ms: float, row: int) -> None:
        """Move the mouse to a time in a row."""
        x, y = self.page.evaluate(
            f"(() => {{ const box = chart.getBoundingClientRect();"
            f"return [box.left + toX({ms} * 1e6), box.top + AXIS + {row} * ROW + TOP + 8]; }})()"
        )
        self.page.mouse.move(x, y)


@pytest.fixture
def opened(browser, monkeypatch, tmp_path):
    path = tmp_path / "timeline.html"
    path.write_text(timeline_page(small(monkeypatch), TWO), encoding="utf-8")
    opened = Opened(browser, path)
    yield opened
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]
    opened.page.close()


def test_the_verdict_is_on_top(opened):
    assert "Fetching samples is the bottleneck" in opened.page.inner_text("#verdict")
    assert "30 %" in opened.page.inner_text("#facts")


def test_hovering_tells_what_is_under_the_mouse(opened):
    opened.point(35, row=1)
    text = opened.page.inner_text("#tip")
    assert text.startswith("worker 1, batch 3")
    assert re.search(r"sample 7\s+8 ms", text)
    assert re.search(r"fetch\s+12 ms", text)
    assert "indices 6, 7" in text
    opened.point(31, row=2)
    assert re.search(r"training loop, batch 3[\s\S]*waited\s+3 ms[\s\S]*step\s+7 ms", opened.page.inner_text("#tip"))
    opened.page.mouse.move(5, 5)
    assert not opened.page.is_visible("#tip")


def test_the_wheel_zooms_where_the_mouse_is_and_dragging_moves(opened):
    whole = opened.view()
    opened.point(100, row=0)
    for _ in range(5):
        opened.page.mouse.wheel(0, -100)
    opened.page.wait_for_function(f"+chart.dataset.to < {whole[1]}")
    zoomed = opened.view()
    assert zoomed[1] - zoomed[0] < 0.5 * (whole[1] - whole[0])
    assert zoomed[0] < 100e6 < zoomed[1]
    opened.page.mouse.down()
    opened.page.mouse.move(300, 300, steps=4)
    opened.page.mouse.up()
    moved = opened.view()
    assert moved[0] > zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])


def test_keys_zoom_and_move(opened):
    whole = opened.view()
    opened.page.keyboard.press("+")
    zoomed = opened.view()
    assert zoomed[1] - zoomed[0] == pytest.approx(0.7 * (whole[1] - whole[0]))
    opened.page.keyboard.press("ArrowRight")
    assert opened.view()[0] > zoomed[0]
    opened.page.keyboard.press("0")
    assert opened.view() == whole


def test_a_click_into_the_overview_goes_there(opened):
    for _ in range(6):
        opened.page.keyboard.press("+")
    box = opened.page.locator("#overview").bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] - 5, box["y"] + 20)
    assert opened.view()[1] == pytest.approx(208e6, rel=0.02)


def test_light_and_dark(opened):
    before = opened.page.evaluate("document.documentElement.dataset.theme")
    opened.page.click("#theme")
    assert {before, opened.page.evaluate("document.documentElement.dataset.theme")} == {"light", "dark"}


def test_however_many_spans_there_are_few_boxes_are_drawn(browser, monkeypatch, tmp_path):
    path = tmp_path / "timeline.html"
    path.write_text(timeline_page(small(monkeypatch, n=2000), TWO), encoding="utf-8")
    opened = Opened(browser, path)
    assert opened.page.evaluate("count") >= 5000
    drawn = opened.page.evaluate(
        "(() => { const context = chart.getContext('2d'), fill = context.fillRect; let n = 0;"
        "context.fillRect = (...box) => { n++; fill.apply(context, box); }; drawChart(); return n; })()"
    )
    assert 1000 < drawn < 2 * 1300 * 3  # at most about one box for each pixel of a row, however many spans there are
    assert opened.complaints == []
    opened.page.close()
