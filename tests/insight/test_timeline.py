"""The timeline: what is in the page, what that does in a browser, and the trace."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import DataLoader
from headrace.insight.figures import Setup
from headrace.insight.timeline import Timeline, timeline_data, timeline_page, trace_of
from tests.insight.recorded import Loop, Recorder, ends_of, indices, recorded, span_of, use_clock

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TWO = Setup("processes", workers=2, cores=2)


def two_samples(number: int) -> Any:
    """Two workers, each of which makes a batch in 20 ms: samples of 4 and 8 ms, then 5 ms to collate, 1 ms to send."""
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
    assert third["at"] == [1, 0, 3, 30_000_000, 48_000_000, 10_000_000]
    ms = 1_000_000
    assert third["stages"] == [["fetch", 30 * ms, 42 * ms], ["collate", 42 * ms, 47 * ms], ["send", 47 * ms, 48 * ms]]
    assert (third["keys"], third["ends"], third["count"]) == ([6, 7], [34_000_000, 42_000_000], 2)


def test_the_page_asks_for_nothing_from_elsewhere(monkeypatch):
    page = timeline_page(small(monkeypatch), TWO)
    assert "/*DATA*/" not in page
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["data:,"]
    assert "default-src 'none'" in page


@pytest.mark.parametrize("key", ["</script><b>", "<!--<script>"])
def test_keys_cannot_break_out_of_the_page(tmp_path, key):
    loader = DataLoader(dict.fromkeys((key, "b"), 1), sampler=[key, "b"], batch_size=1)
    assert len(list(loader)) == 2
    loader.timeline(tmp_path / "timeline.html")
    page = (tmp_path / "timeline.html").read_text()
    assert key not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["work"][0]["keys"] == [key]


def test_epochs_replaced_workers_and_other_waits_are_marked(monkeypatch):
    data = timeline_data(two_epochs(monkeypatch), TWO)
    ms = 1_000_000
    assert data["epochs"] == [[0, 0], [1, 115 * ms]]
    assert data["waits"] == [
        [0, "start", 0, 10 * ms],
        [0, "end", 110 * ms, 115 * ms],
        [1, "start", 115 * ms, 125 * ms],
        [1, "end", 225 * ms, 230 * ms],
    ]
    assert data["replaced"] == [[1, 20 * ms]]


def two_epochs(monkeypatch: Any) -> Recorder:
    """Two epochs of ten turns of 10 ms, which start in 10 ms and end in 5 ms; a worker is replaced at 20 ms."""
    clock, recorder = use_clock(monkeypatch), Recorder()
    for epoch in range(2):
        loop = Loop(recorder, clock, epoch, start=10)
        for number in range(10):
            loop.make(number, number % 2, span_of(clock.now / 1e6, 7, 1, 1))
            loop.turn(number, 3, 7)
            if epoch == number == 0:
                recorder.replaced(1)
        loop.end(wait=5)
    return recorder


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


def test_a_batch_is_followed_from_its_worker_to_the_loop(opened):
    opened.point(35, row=1)
    lit = opened.page.evaluate("(() => { const { work, turn } = batchOf(hovered); return [work.at, turn]; })()")
    assert lit[0][:3] == [1, 0, 3]  # worker, epoch, batch
    assert lit[1][:3] == [0, 3, 30_000_000]
    opened.page.mouse.click(*opened.page.evaluate(MIDDLE))
    assert opened.page.evaluate("pinned !== null")
    opened.page.keyboard.press("Escape")
    assert opened.page.evaluate("pinned === null")


MIDDLE = (
    "(() => { const b = chart.getBoundingClientRect(); return [b.left + toX(35e6), b.top + AXIS + ROW + TOP + 8]; })()"
)


def test_how_many_batches_lie_ready_is_drawn_below_the_loop(opened):
    depth = opened.page.evaluate("queue.map(({ at, n }) => [at, n])")
    assert depth
    assert min(n for _, n in depth) == 0
    assert depth[-1][1] == 0  # all were taken
    assert opened.page.evaluate("chart.clientHeight") == opened.page.evaluate("AXIS + rows.length * ROW + STRIP")


def test_keys_and_buttons_jump_to_waits_and_to_the_slowest_samples(opened):
    opened.page.keyboard.press("n")
    first = opened.view()
    opened.page.click("#next")
    second = opened.view()
    assert first[0] + first[1] < second[0] + second[1]
    opened.page.click("#previous")
    assert opened.view() == pytest.approx(first)
    opened.page.keyboard.press("s")
    begun, ended = opened.view()
    assert ended - begun == pytest.approx(24e6)  # a sample of 8 ms, and as much on both sides


def test_figures_of_a_range_that_is_selected(opened):
    assert opened.page.inner_text("#range").startswith("in view")
    box = opened.page.locator("#chart").bounding_box()
    begin, end = opened.page.evaluate("[toX(50e6), toX(100e6)]")
    opened.page.keyboard.down("Shift")
    opened.page.mouse.move(box["x"] + begin, box["y"] + 60)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + end, box["y"] + 60, steps=3)
    opened.page.mouse.up()
    opened.page.keyboard.up("Shift")
    opened.view()
    text = opened.page.inner_text("#range")
    assert text.startswith("selected 50 ms · 5 batches · loop waits 30 % · workers busy ")
    opened.page.keyboard.press("Escape")
    opened.view()
    assert opened.page.inner_text("#range").startswith("in view")


def test_a_link_leads_to_the_same_moment(opened, browser):
    opened.page.keyboard.press("n")
    moment = opened.view()
    link = opened.page.url
    assert "#t=" in link
    again = browser.new_page(viewport={"width": 1300, "height": 700})
    again.goto(link)
    again.wait_for_function("chart.dataset.to !== undefined")
    assert again.evaluate("[view.from, view.to]") == pytest.approx(list(moment), abs=1)
    again.close()
    opened.page.keyboard.press("0")
    opened.view()
    assert "#" not in opened.page.url


@pytest.mark.parametrize("width", [390, 1300])
def test_nothing_hangs_over_the_edge(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 700})
    opened.view()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_works_within_another_page(browser, monkeypatch):
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_content(Timeline(timeline_page(small(monkeypatch), TWO))._repr_html_())
    frame = page.frames[1]
    frame.wait_for_function("document.getElementById('chart').dataset.to !== undefined")
    frame.press("body", "n")
    frame.wait_for_function("document.getElementById('range').textContent.startsWith('in view')")
    assert complaints == []
    page.close()


def test_epochs_and_replaced_workers_are_drawn(browser, monkeypatch, tmp_path):
    path = tmp_path / "timeline.html"
    path.write_text(timeline_page(two_epochs(monkeypatch), TWO), encoding="utf-8")
    opened = Opened(browser, path)
    labels = opened.page.evaluate(
        "(() => { const context = chart.getContext('2d'), fill = context.fillText, texts = [];"
        "context.fillText = (text, ...at) => { texts.push(text); fill.call(context, text, ...at); };"
        "drawChart(); return texts; })()"
    )
    assert {"epoch 0", "epoch 1"} <= set(labels)
    opened.point(20, row=1)
    assert re.search(r"worker 1 replaced\s+after\s+20 ms", opened.page.inner_text("#tip"))
    opened.point(5, row=2)
    assert re.search(r"training loop, start of epoch 0\s+waited\s+10 ms", opened.page.inner_text("#tip"))
    assert opened.complaints == []
    opened.page.close()


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


def test_a_trace_has_a_row_for_the_loop_and_each_worker(monkeypatch):
    def make_span(number):
        return span_of(10 * number, 4, 2, 1, n_samples=1, slowest=0, slowest_ns=4, ends=ends_of(10 * number + 4))

    events = trace_of(recorded(monkeypatch, [(3, 7)] * 4, make_span), Setup("threads", 2))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "training loop", 2: "worker 0", 3: "worker 1"}
    assert all(set(event) >= {"name", "ph", "ts", "dur", "pid", "tid"} for event in events if event["ph"] == "X")
    batch = [event for event in events if event["ph"] == "X" and event["args"].get("batch") == 1]
    times = {event["name"]: (event["ts"], event["dur"]) for event in batch}
    assert times == {
        "wait": (10_000, 3_000),
        "step": (13_000, 7_000),
        "batch": (10_000, 7_000),
        "fetch": (10_000, 4_000),
        "collate": (14_000, 2_000),
        "send": (16_000, 1_000),
        "sample 1": (10_000, 4_000),
    }


def test_a_trace_is_written_as_json(tmp_path):
    loader = DataLoader(["a", "b", "c"], batch_size=1)
    assert len(list(loader)) == 3
    loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["training loop", "loading"]


def test_a_trace_marks_epochs_and_replaced_workers(monkeypatch):
    events = trace_of(two_epochs(monkeypatch), TWO)["traceEvents"]
    marks = [(event["name"], event["tid"], event["ts"]) for event in events if event["ph"] == "i"]
    assert marks == [("epoch 0", 0, 0), ("epoch 1", 0, 115_000), ("worker replaced", 3, 20_000)]
    waits = [(event["name"], event["dur"]) for event in events if event["name"].startswith("wait for")]
    assert waits == [("wait for start", 10_000), ("wait for end", 5_000)] * 2
