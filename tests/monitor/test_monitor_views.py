"""Views for programs, and what all views share: escaping, figures, bounded histories, words."""

import io
import json
import re
import unicodedata
import urllib.error
import urllib.request
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_moments import HOSTILE, busy, device, moment, snapshot, starved, unknown

from iofast.errors import OptionError
from iofast.monitor.findings import Band, Bound, Cause, StallBounds
from iofast.monitor.render import wording
from iofast.monitor.render.layout import whole
from iofast.monitor.render.moment import SPANS, Figures, History, Timeline, figures
from iofast.monitor.render.printed import JsonLines, PlainLines, to_json
from iofast.monitor.render.prometheus import HELP, Endpoint, address, exposition, label
from iofast.monitor.snapshot import Doing, Job, Looks, Tier

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
texts = st.one_of(st.text(st.characters(exclude_categories=()), max_size=80), st.sampled_from(HOSTILE))


def shows(text: str) -> bool:
    """Whether every character of a text shows, and the text is one line."""
    return not any(unicodedata.category(character) in HIDDEN for character in text)


@given(texts)
def test_plain_text_is_one_line_that_shows(text: str) -> None:
    line = wording.plain(text)
    assert shows(line)
    line.encode()  # no half of a character
    assert len(wording.plain(text, 20)) <= 20
    assert re.fullmatch(r'(?:[^"\\\n]|\\["\\])*', label(text)), "a label of Prometheus ends where it should"


def test_harmless_text_stays() -> None:
    assert wording.plain("train.py --data 'my images' Ünï 日本") == "train.py --data 'my images' Ünï 日本"
    assert wording.plain("a\x1b[2J\n\u202e") == "a\\x1b[2J\\n\\u202e"
    assert wording.plain("x" * 500)[-2:] == "x…"


# --- figures, histories, words


def test_figures_from_inside_come_first() -> None:
    seen = snapshot(text="loader")
    now = figures(replace(seen, loaders=(replace(seen.loaders[0], exposed_s=0.36),)))
    assert now.stall_low == now.stall_high == pytest.approx(0.36)
    assert now.images_per_s == 320


def test_no_figure_is_guessed() -> None:
    bare = snapshot(processes=(), devices=(), main=Looks(0, dict.fromkeys(Doing, 0.0)))
    known = {name: value for name, value in asdict(figures(bare)).items() if value is not None}
    assert known == {"disk_bytes_per_s": bare.system.disk_read_bytes}, "everybody's"


@pytest.mark.parametrize(("own", "busy"), [((True, False), 0.2), ((None, None), 0.3)])
def test_of_several_devices_the_job_s_own(own: tuple[bool | None, ...], busy: float) -> None:
    devices = (device(0.2, own=own[0]), device(0.4, index=1, own=own[1]))
    assert figures(snapshot(devices=devices)).device_busy == pytest.approx(busy)


def test_days_take_no_more_than_an_hour() -> None:
    timeline, bare = Timeline(16), figures(snapshot(devices=()))
    for number in range(20_000):
        timeline.add(replace(bare, images_per_s=number % 2))
    assert len(timeline.stretches) <= 16
    assert {one.images_per_s for one in timeline.stretches} == {0.5}
    assert {one.device_busy for one in timeline.stretches} == {None}


def test_spans_are_bounded_and_what_held_longest_is_known() -> None:
    history = History(100.0)
    for number in range(3 * SPANS):
        history.add(snapshot(number), busy() if number % 3 else starved())
    assert len(history.spans) == SPANS
    assert len(history.held_s) == 2
    assert history.prevailing() is Bound.COMPUTE
    assert History(0.0).prevailing() is Bound.UNKNOWN


def test_numbers() -> None:
    assert wording.bounds(0.314, 0.377) == "31–38%"
    assert wording.bounds(0.2, 0.2) == "20%"
    assert [wording.clock(s) for s in (9, 61, 3723)] == ["00:09", "01:01", "1:02:03"]
    found = [wording.figure("images_per_s", rate) for rate in (None, 0.5, 812.3, 12345.6)]
    assert found == ["–", "0.5", "812", "12,346"]
    assert [wording.figure("disk_bytes_per_s", rate) for rate in (0, 3.21e9)] == ["0 MB/s", "3,210 MB/s"]
    assert wording.figure("device_busy", 0.414) == "41.4%"
    assert set(wording.FIGURES) < {each.name for each in fields(Figures)}


def test_every_verdict_and_cause_has_words() -> None:
    assert set(wording.MEANING) == set(Bound)
    assert set(wording.WHY) == set(Cause)
    assert set(wording.TIERS) == set(Tier)


def test_a_host_wait_is_not_called_a_stall() -> None:
    """Nor is a device spoken of where there is none."""
    alone = starved(stall=StallBounds(0.2, 0.3, Tier.OUTSIDE, host_wait=True))
    assert wording.stall_text(alone.stall).startswith("host wait 20–30%")
    assert any(line.plain.startswith("host wait ") for line in whole(moment(last=alone)))
    assert wording.explanation(alone).startswith("The training thread waits for batches: decoding takes")


# --- JSON


def test_json_as_issue_and_documents_promise() -> None:
    shown = moment(last=starved(interference=Band(0.1, 0.25)))
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
    assert found["run"] is None


def test_lines_to_paste_stay_lines() -> None:
    """Each of them is plain: what a watched process is called adds none."""
    advice = replace(starved().advice[0], change="from iofast import FastLoader\nloader = FastLoader('\x1b[2J')")
    found = to_json(moment(1, last=starved(advice=(advice,))))
    assert found["advice"][0]["change"] == "from iofast import FastLoader\nloader = FastLoader('\\x1b[2J')"


def test_what_is_not_known_is_null() -> None:
    found = to_json(moment(1, last=unknown(), devices=(device(float("nan")),)))
    assert (found["stall"], found["cause"], found["devices"][0]["busy"]) == (None, None, None)


def strings(value: Any) -> list[str]:
    """Every text in a value of JSON."""
    if isinstance(value, dict):
        return [*value, *(s for item in value.values() for s in strings(item))]
    return [s for item in value for s in strings(item)] if isinstance(value, list) else [str(value)]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_lines_and_json(text: str) -> None:
    out, objects = io.StringIO(), io.StringIO()
    now = moment(1, text, starved(text))
    lines = PlainLines(out)
    lines.waiting(text)
    lines.update(now)
    lines.close([now])
    assert all(shows(line) for line in out.getvalue().split("\n"))
    assert all(shows(line.plain) for line in whole(now))
    JsonLines(objects).update(now)
    assert objects.getvalue().count("\n") == 1
    assert objects.getvalue().isascii()
    found = json.loads(objects.getvalue())
    pasted = [line for one in found["advice"] for line in one.pop("change").split("\n")]  # the table adds them
    assert all(shows(text) for text in (*pasted, *strings(found)))


# --- Prometheus


LINE = re.compile(r'(?:# (?:HELP|TYPE) \w+ .+|\w+(?:\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+)')


@settings(max_examples=20)
@given(texts)
def test_hostile_text_stays_within_its_label(text: str) -> None:
    lines = exposition([moment(1, text or "x", starved(text))]).splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert len([line for line in lines if line.startswith("iofast_verdict{")]) == 1


def test_series_of_prometheus() -> None:
    text = exposition([moment(last=starved(interference=Band(0.1, 0.25)))])
    assert 'iofast_stall_high_ratio{pid="4242",rank="0",command="python train.py' in text
    assert 'verdict="input-bound",cause="decode-cpu-workers",severity="severe"} 1.0\n' in text
    assert 'file="/u/train.py",line="41",function="main",call="queue.get",source="threads"} 0.34\n' in text
    assert set(re.findall(r"^(\w+)[ {]", text, re.M)) == set(HELP) - {"iofast_images_per_second"}
    assert exposition([replace(moment(), ended=True)]).splitlines()[-1] == "iofast_jobs 0.0"
    assert text.startswith("# HELP iofast_jobs training processes watched\n# TYPE iofast_jobs gauge\niofast_jobs 1.0\n")


def test_addresses_of_prometheus() -> None:
    found = [address(text) for text in ("9100", "0.0.0.0:0", "[::1]:80", ":81")]
    assert found == [("127.0.0.1", 9100), ("0.0.0.0", 0), ("::1", 80), ("127.0.0.1", 81)]
    for wrong in ("", "x", "host:", "1:65536", "-1", "²"):
        with pytest.raises(OptionError, match="--prometheus"):
            address(wrong)


def test_prometheus_is_served() -> None:
    endpoint = Endpoint("127.0.0.1", 0, lambda: [moment()])
    try:
        endpoint.update(moment())
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "iofast_jobs 1.0\n" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/etc/passwd", timeout=5)
        with pytest.raises(OptionError, match=r"cannot listen on 127\.0\.0\.1:"):
            Endpoint("127.0.0.1", endpoint.port, list)
    finally:
        endpoint.close([])
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5)


# --- lines


def test_a_line_when_it_changes_and_now_and_then() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
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


def test_the_end_of_a_job_is_said_when_it_comes() -> None:
    """And once: the last lines are of those that are still there. Nothing is kept of it."""
    out = io.StringIO()
    lines = PlainLines(out)
    ended, other = replace(moment(3), ended=True), moment(3, job=Job(77, 1, "python b.py"))
    for each in (moment(3), other, ended):
        lines.update(each)
    assert out.getvalue().splitlines()[-1].startswith("iofast monitor: ended: pid 4242")
    assert len(lines._printed) == 1
    lines.close([ended, other])
    assert out.getvalue().count(": ended: ") == 1
    assert out.getvalue().splitlines()[-1].startswith("iofast monitor: last: pid 77")
