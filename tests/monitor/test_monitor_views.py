"""Views for programs, and what all views share: escaping, figures, bounded histories, words."""

from __future__ import annotations

import io
import json
import re
import unicodedata
import urllib.error
import urllib.request
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_moments import HOSTILE, busy, device, moment, snapshot, starved, unknown

from iofast.errors import OptionError
from iofast.monitor.findings import Bound, Cause, Interference, StallBounds
from iofast.monitor.render import escape, wording
from iofast.monitor.render.layout import whole
from iofast.monitor.render.moment import SPANS, History, Timeline, figures
from iofast.monitor.render.printed import JsonLines, Lines, to_json
from iofast.monitor.render.prometheus import HELP, Endpoint, address, exposition, label
from iofast.monitor.snapshot import Doing, Job, Looks, Tier

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
texts = st.one_of(st.text(st.characters(exclude_categories=()), max_size=80), st.sampled_from(HOSTILE))


def shows(text: str) -> bool:
    """Whether every character of a text shows, and the text is one line."""
    return not any(unicodedata.category(character) in HIDDEN for character in text)


class TestEscape:
    @given(texts)
    def test_plain_is_one_line_that_shows(self, text: str) -> None:
        line = escape.plain(text)
        assert shows(line)
        line.encode()  # no half of a character
        assert len(escape.plain(text, 20)) <= 20

    def test_what_is_harmless_stays(self) -> None:
        assert escape.plain("train.py --data 'my images' Ünï 日本") == "train.py --data 'my images' Ünï 日本"
        assert escape.plain("a\x1b[2J\n\u202e") == "a\\x1b[2J\\x0a\\u202e"
        assert escape.plain("x" * 500)[-2:] == "x…"

    @given(texts)
    def test_label_ends_where_it_should(self, text: str) -> None:
        assert re.fullmatch(r'(?:[^"\\\n]|\\["\\])*', label(text))


class TestViewFigures:
    def test_inside_figures_come_first(self) -> None:
        seen = snapshot(text="loader")
        now = figures(replace(seen, loaders=(replace(seen.loaders[0], exposed_s=0.36),)))
        assert now.stall_low == now.stall_high == pytest.approx(0.4)
        assert now.images_per_s == 576

    def test_nothing_is_guessed(self) -> None:
        bare = snapshot(processes=(), devices=(), main=Looks(0, dict.fromkeys(Doing, 0.0)))
        system = bare.system
        assert {name for name, value in asdict(figures(bare)).items() if value is not None} == {"disk_bytes_per_s"}
        assert figures(bare).disk_bytes_per_s == system.disk_read_bytes  # everybody's

    def test_of_several_devices_the_job_s_own(self) -> None:
        assert figures(snapshot(devices=(device(0.2), device(0.9, index=1, own=False)))).device_busy == 0.2
        both = figures(snapshot(devices=(device(0.2, own=None), device(0.4, own=None))))
        assert both.device_busy == pytest.approx(0.3)


class TestHistory:
    def test_days_take_no_more_than_an_hour(self) -> None:
        timeline, bare = Timeline(16), figures(snapshot(devices=()))
        for number in range(20_000):
            timeline.add(replace(bare, images_per_s=number % 2))
        assert len(timeline.stretches) <= 16
        assert {one.images_per_s for one in timeline.stretches} == {0.5}
        assert {one.device_busy for one in timeline.stretches} == {None}

    def test_spans_are_bounded_and_what_held_longest_is_known(self) -> None:
        history = History(100.0)
        for number in range(3 * SPANS):
            history.add(snapshot(number), figures(snapshot(number)), busy() if number % 3 else starved())
        assert len(history.spans) == SPANS
        assert len(history.held_s) == 2
        assert history.prevailing() is Bound.COMPUTE
        assert History(0.0).prevailing() is Bound.UNKNOWN


class TestViewWords:
    def test_numbers(self) -> None:
        assert wording.bounds(0.314, 0.377) == "31–38%"
        assert wording.bounds(0.2, 0.2) == "20%"
        assert [wording.clock(s) for s in (9, 61, 3723)] == ["0:09", "1:01", "1:02:03"]
        assert [wording.rate(r) for r in (0, 4.2e6, 3.21e9, 2e12)] == ["0 B/s", "4.2 MB/s", "3.21 GB/s", "2,000 GB/s"]
        assert [wording.count(c) for c in (None, 0.5, 812.3, 12345.6)] == ["–", "0.5", "812", "12,346"]

    def test_every_verdict_and_cause_has_words(self) -> None:
        assert set(wording.MEANING) == set(Bound)
        assert set(wording.WHY) == set(Cause)
        assert set(wording.TIERS) == set(Tier)

    def test_a_host_wait_is_not_called_a_stall(self) -> None:
        """Nor is a device spoken of where there is none."""
        alone = starved(stall=StallBounds(0.2, 0.3, Tier.OUTSIDE, host_wait=True))
        assert wording.stall_text(alone.stall).startswith("host wait 20–30%")
        assert wording.rows(moment(last=alone))[2].name == "host wait"
        assert wording.explanation(alone).startswith("The training thread waits for batches: decoding takes")


class TestJson:
    def test_what_issue_and_documents_promise(self) -> None:
        shown = moment(last=starved(interference=Interference(0.1, 0.25)))
        found = json.loads(json.dumps(to_json(shown), allow_nan=False))
        assert (found["schema"], found["verdict"], found["cause"]) == (2, "input-bound", "decode-cpu-workers")
        assert found["stall"] == {"low": 0.31, "high": 0.38, "tier": "stacks", "host_wait": False}
        assert found["evidence"][0] == {"name": "worker_cpu", "value": 0.93, "text": "workers run 93% of the time"}
        assert found["advice"][0]["gain"] == 1.52
        assert found["phases"]["training"] == 92.0
        assert found["interference"] == {"low": 0.1, "high": 0.25}
        line = {"file": "/u/train.py", "line": 41, "function": "main", "call": "queue.get", "source": "threads"}
        assert found["waits"] == {**line, "loader": True, "share": 0.34}
        assert found["devices"][0]["busy"] == found["figures"]["device_busy"]

    def test_lines_to_paste_stay_lines(self) -> None:
        """Each of them is plain: what a watched process is called adds none."""
        advice = replace(starved().advice[0], change="from iofast import FastLoader\nloader = FastLoader('\x1b[2J')")
        found = to_json(moment(1, last=starved(advice=(advice,))))
        assert found["advice"][0]["change"] == "from iofast import FastLoader\nloader = FastLoader('\\x1b[2J')"

    def test_what_is_not_known_is_null(self) -> None:
        found = to_json(moment(1, last=unknown(), devices=(device(float("nan")),)))
        assert found["stall"] is None
        assert found["cause"] is None
        assert found["devices"][0]["busy"] is None

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_text(self, text: str) -> None:
        out = io.StringIO()
        JsonLines(out).update(moment(1, text, starved(text)))
        assert out.getvalue().count("\n") == 1
        assert out.getvalue().isascii()

        def strings(value: Any) -> list[str]:
            if isinstance(value, dict):
                return [*value, *(s for item in value.values() for s in strings(item))]
            return [s for item in value for s in strings(item)] if isinstance(value, list) else [value]

        found = json.loads(out.getvalue())
        lines = [line for one in found["advice"] for line in one.pop("change").split("\n")]  # the table adds them
        assert all(shows(text) for text in (*lines, *strings(found)) if isinstance(text, str))


class TestPrometheus:
    LINE = re.compile(r'(?:# (?:HELP|TYPE) \w+ .+|\w+(?:\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+)')

    @settings(max_examples=20)
    @given(texts)
    def test_hostile_text_stays_within_its_label(self, text: str) -> None:
        lines = exposition([moment(1, text or "x", starved(text))]).splitlines()
        assert [line for line in lines if not self.LINE.fullmatch(line)] == []
        assert len([line for line in lines if line.startswith("iofast_verdict{")]) == 1

    def test_names_and_values(self) -> None:
        text = exposition([moment(last=starved(interference=Interference(0.1, 0.25)))])
        assert 'iofast_stall_high_ratio{pid="4242",rank="0",command="python train.py' in text
        assert re.search(
            r'^iofast_verdict\{.*verdict="input-bound",cause="decode-cpu-workers",severity="severe"\} 1.0$', text, re.M
        )
        line = 'file="/u/train.py",line="41",function="main",call="queue.get",source="threads"} 0.34\n'
        assert line in text
        assert set(re.findall(r"^(\w+)[ {]", text, re.M)) == set(HELP) - {"iofast_images_per_second"}
        assert text.startswith(
            "# HELP iofast_jobs training processes watched\n# TYPE iofast_jobs gauge\niofast_jobs 1.0\n"
        )

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("9100", ("127.0.0.1", 9100)),
            ("0.0.0.0:0", ("0.0.0.0", 0)),
            ("[::1]:80", ("::1", 80)),
            (":81", ("127.0.0.1", 81)),
        ],
    )
    def test_address(self, text: str, expected: tuple[str, int]) -> None:
        assert address(text) == expected

    @pytest.mark.parametrize("text", ["", "x", "host:", "1:65536", "-1", "²"])
    def test_wrong_address(self, text: str) -> None:
        with pytest.raises(OptionError, match="--prometheus"):
            address(text)

    def test_serves(self) -> None:
        endpoint = Endpoint("127.0.0.1", 0)
        try:
            endpoint.update(moment())
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert "iofast_jobs 1.0\n" in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/etc/passwd", timeout=5)
            with pytest.raises(OptionError, match=r"cannot listen on 127\.0\.0\.1:"):
                Endpoint("127.0.0.1", endpoint.port)
        finally:
            endpoint.close([])
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5)


class TestLines:
    def test_a_line_when_it_changes_and_now_and_then(self) -> None:
        out = io.StringIO()
        lines = Lines(out, every=30)
        lines.waiting("nobody; waiting")
        lines.waiting("nobody; waiting")
        for seconds in range(1, 70, 3):
            lines.update(moment(seconds, last=starved()))
        said = out.getvalue().splitlines()
        assert said.pop(0) == "iofast monitor: nobody; waiting"
        assert said.pop(0).startswith("iofast monitor: note: no Python stacks")
        assert len(said) == 3
        words = "input-bound: decode-cpu-workers · stall 31–38% of training time · tier stacks"
        assert all(words in line for line in said)

    def test_the_end_of_a_job_is_said_when_it_comes(self) -> None:
        """And once: the last lines are of those that are still there. Nothing is kept of it."""
        out = io.StringIO()
        lines = Lines(out)
        ended, other = replace(moment(3), ended=True), moment(3, job=Job(77, 1, "python b.py"))
        for each in (moment(3), other, ended):
            lines.update(each)
        assert out.getvalue().splitlines()[-1].startswith("iofast monitor: ended: pid 4242")
        assert len(lines._printed) == 1
        lines.close([ended, other])
        assert out.getvalue().count(": ended: ") == 1
        assert out.getvalue().splitlines()[-1].startswith("iofast monitor: last: pid 77")

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_text(self, text: str) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.waiting(text)
        lines.update(moment(1, text, starved(text)))
        lines.close([moment(1, text, starved(text))])
        assert all(shows(line) for line in out.getvalue().split("\n"))
        assert all(shows(line.plain) for line in whole(moment(1, text, starved(text))))
