"""Windows of text become batches where they are given out; nobody can tell but by the time it takes."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, read_text
from headrace.engines.engine import Job
from headrace.engines.worker import Workplace
from headrace.sources.chunks import ObjectChunk, TextChunk
from headrace.streams.fetch import StreamJob
from headrace.streams.loop_batches import TextBatches, WindowText, text_of
from headrace.streams.messages import CutBatches, ReadOn, SendRows
from headrace.streams.windows import Share

WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}]
RHYMES = ["one, two", "", "buckle my shoe", "  ", "três, quatro", "knock at the door"] * 9
OF_BAD_BYTES = b"one\ntwo\n\xff\xfe\nfour\nfive\n"


def chunk_of(lines):
    return TextChunk("".join(f"{line}\n" for line in lines), "\n", len(lines), "text")


@pytest.fixture
def rhymes(tmp_path):
    path = tmp_path / "rhymes.txt"
    path.write_text("\n".join(RHYMES), encoding="utf-8")
    return path


def expected(words):
    return [word for line in RHYMES for word in line.split()] if words else RHYMES


def cut(rows, size):
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def kept(lines):
    """As the default collation does it, but nobody knows that it draws no random numbers."""
    return lines


def joined(lines):
    return "/".join(lines)


class TestLoaders:
    @pytest.mark.parametrize("words", [False, True])
    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("block_bytes", [40, 200, 10_000])
    @pytest.mark.parametrize("collate", [None, list, kept, joined])
    def test_batches_are_those_of_one_reader(self, rhymes, words, workers, block_bytes, collate):
        stream = read_text(rhymes, words=words, block_bytes=block_bytes)
        batches = list(DataLoader(stream, batch_size=7, collate_fn=collate, **workers))
        assert batches == [joined(batch) if collate is joined else batch for batch in cut(expected(words), 7)]

    @pytest.mark.parametrize("words", [False, True])
    def test_it_goes_on_after_any_batch(self, rhymes, words):
        def loader():
            return DataLoader(read_text(rhymes, words=words, block_bytes=100), batch_size=7)

        whole = cut(expected(words), 7)
        for n in range(len(whole)):
            first, second = loader(), loader()
            batches = iter(first)
            assert [next(batches) for _ in range(n)] == whole[:n]
            second.load_state_dict(first.state_dict())
            assert list(second) == whole[n:]

    @pytest.mark.filterwarnings("ignore:on_error='skip' leaves out")
    @pytest.mark.parametrize("workers", WORKERS)
    def test_bad_lines_are_left_out(self, tmp_path, workers):
        path = tmp_path / "bad.txt"
        path.write_bytes(OF_BAD_BYTES * 3)
        loader = DataLoader(read_text(path, block_bytes=25), batch_size=3, on_error="skip", **workers)
        assert list(loader) == cut(["one", "two", "four", "five"] * 3, 3)
        assert len(loader.errors) == 3

    def test_batches_do_not_share_a_list(self, rhymes):
        batches = []
        for batch in DataLoader(read_text(rhymes), batch_size=7):
            batches.append(list(batch))
            batch.clear()
        assert batches == cut(RHYMES, 7)


def test_an_interrupt_while_a_batch_is_split_leaves_nothing_out(rhymes, monkeypatch):
    """Either the epoch goes on with the next batch, or it is over."""
    whole = cut(RHYMES, 5)
    monkeypatch.setattr("headrace.sources.text.LineSource._piece_bytes", 30)
    batches = iter(DataLoader(read_text(rhymes), batch_size=5))
    assert next(batches) == whole[0]

    def interrupted(text, separator):
        raise KeyboardInterrupt

    seen = [whole[0]]
    with monkeypatch.context() as patch:
        patch.setattr("headrace.streams.loop_batches.split_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            seen.extend(batches)
    seen += batches
    assert seen == whole[: len(seen)]
    assert len(seen) < len(whole)


class TestTextBatches:
    @given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), size=st.integers(1, 12))
    def test_any_texts_are_cut_as_one(self, lengths, size):
        lines = [str(i) for i in range(sum(lengths) // size * size)]
        texts, rest = [], lines
        for length in lengths:
            part, rest = rest[:length], rest[length:]
            texts += ["\n".join(part) + "\n"] if part else []
        assert list(TextBatches([(text, "\n") for text in texts], size)) == cut(lines, size)


def text_from(first, *chunks):
    """Text of a window whose rows before `first` are known."""
    text = WindowText()
    text.add(list(chunks), first, first)
    return text


class TestWindowText:
    @settings(deadline=None)
    @given(st.lists(st.lists(st.text("ab ", max_size=2), min_size=1, max_size=5), min_size=1, max_size=4), st.data())
    def test_it_answers_as_a_worker_would(self, windows, data):
        lines = [line for chunk in windows for line in chunk]
        text = text_from(0, *map(chunk_of, windows))
        start = data.draw(st.integers(0, len(lines) - 1))
        stop = data.draw(st.integers(start, len(lines)))
        assert text.answer(SendRows(None, start, stop)).rows() == lines[start:stop]
        size = data.draw(st.integers(1, len(lines) - start))
        stop = start + data.draw(st.integers(1, (len(lines) - start) // size)) * size
        assert list(text.answer(CutBatches(None, start, stop, size, 0))) == cut(lines[start:stop], size)

    def test_it_is_sent_as_texts(self):
        again = pickle.loads(pickle.dumps(text_of([chunk_of(["a", "b"]), chunk_of(["c"])])))
        assert text_from(0, *again).answer(SendRows(None, 0, 3)).rows() == ["a", "b", "c"]

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
    def test_rows_that_were_sent_before_are_left_out(self, lengths, data):
        lines = [str(i) for i in range(sum(lengths))]
        ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        n = data.draw(st.integers(0, len(lines)))
        text = WindowText()
        text.add([chunk_of(lines[start:stop]) for start, stop in pairwise(ends)], 0, n)
        assert text.answer(SendRows(None, n, len(lines))).rows() == lines[n:]

    def test_rows_that_were_asked_for_are_forgotten(self):
        text = text_from(5, chunk_of(["5", "6"]), chunk_of(["7"]))
        text.forget(6)
        assert text.answer(SendRows(None, 6, 8)).rows() == ["6", "7"]
        text.forget(7)
        assert text.answer(SendRows(None, 7, 8)).rows() == ["7"]
        text.forget(8)
        assert not text

    def test_other_rows_are_none(self):
        assert text_of([ObjectChunk(["a"], "text")]) is None
        assert text_of([chunk_of(["a"]), ObjectChunk(["b"], "text")]) is None
        assert text_of([]) is None


class TestWhoGetsText:
    """Only who wants nothing but lists of strings."""

    def read(self, stream, collate=lambda strings: strings, *, is_single=False):
        reader = StreamJob(stream.recipe, batched=not is_single)
        job = Job(None, False, not is_single, False, collate, "numpy", False, reader=reader)
        fetcher = reader.open(Workplace(job, collate, number=0))
        return fetcher.fetch(ReadOn(Share(stream.recipe.plan(None, 0).window(0))))

    @pytest.fixture
    def stream(self, rhymes):
        stream = read_text(rhymes)
        object.__setattr__(stream.recipe, "draws_in_collate", False)
        return stream

    def test_lists_of_strings(self, stream):
        assert self.read(stream).text is not None

    @pytest.mark.parametrize("collate", [list, tuple, len, lambda strings: strings.no_such_method()])
    def test_no_other_batches(self, stream, collate):
        assert self.read(stream, collate=collate).text is None

    def test_no_single_rows(self, stream):
        assert self.read(stream, is_single=True).text is None
