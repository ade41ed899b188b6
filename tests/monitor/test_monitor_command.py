"""`iofast monitor` as a whole, on jobs and verdicts of our own making, and its `--compare`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from monitor_jobs import Watcher, made
from monitor_moments import busy, unknown

from iofast.cli import main
from iofast.errors import OptionError, SourceError
from iofast.monitor import follow, live
from iofast.monitor.findings import Verdict
from iofast.monitor.live import Sources
from iofast.monitor.render.printed import compare, slower
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Snapshot

Given = Callable[..., None]
Caps = pytest.CaptureFixture[str]
PYTHON = (sys.executable, "-S", "-c")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Makes the command see what `made` makes."""
    monkeypatch.setattr(follow, "_ONCE_LEAST_S", 0.0)

    def give(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(live, "machine", lambda _request, _program=None: made(*args, **options))

    return give


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Has this process get a signal when the command has watched for forty intervals, so not before it is ready."""
    interval, seen = Watcher.interval, list[int]()

    def strike(number: signal.Signals) -> None:
        def counted(watcher: Watcher) -> Snapshot:
            seen.append(1)
            if len(seen) == 40:
                os.kill(os.getpid(), number)
            return interval(watcher)

        monkeypatch.setattr(Watcher, "interval", counted)

    return strike


def run(*arguments: str) -> int:
    try:
        return main(["monitor", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({}, "--once", "INPUT-BOUND   decode-cpu-workers"),
        ({}, "--once", "num_workers=4"),
        ({"verdict": unknown()}, "--once --seconds 1", "7 steps in 12 s were seen"),
        ({"last": 2}, "--once", "UNKNOWN"),
        ({"last": 5}, "--pid 4242", "iofast monitor: ended: pid 4242"),
        ({}, "--seconds 1 --json", '"verdict": "unknown"'),
        ({}, "--seconds 1 --json", '"verdict": "input-bound"'),
        ({"jobs": 0}, "--seconds 0.4", "iofast monitor: no training process of yours found; waiting\n"),
    ],
)
def test_what_it_says(options: dict[str, Any], arguments: str, words: str, given: Given, capsys: Caps) -> None:
    given(**options)
    assert run(*arguments.split()) == 0
    text, error = capsys.readouterr()
    assert (words in text, error) == (True, ""), text


def test_an_object_for_each_job(given: Given, capsys: Caps) -> None:
    given(jobs=3)
    assert run("--once", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(one["pid"] for one in found) == [4242, 4243, 4244]
    assert {one["verdict"] for one in found} == {"input-bound"}


def test_interrupted_before_a_verdict(given: Given, struck: Given, capsys: Caps) -> None:
    given(unknown())
    struck(signal.SIGINT)
    assert run("--once") == 130
    assert capsys.readouterr().err == "iofast monitor: interrupted\n"


def test_nobody_is_an_error(given: Given, capsys: Caps) -> None:
    given(jobs=0)
    assert run("--once") == 1
    error = capsys.readouterr().err
    assert error.startswith("iofast monitor: error: no training process of yours found")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "arguments", "status"),
    [
        ({}, ("--once",), 4),
        ({"verdict": busy()}, ("--once",), 0),
        ({"verdict": unknown()}, ("--once", "--seconds", "1"), 0),
        ({"last": 20}, ("--pid", "4242"), 4),  # what held longest
        ({"last": 20}, ("--", *PYTHON, "import time; time.sleep(0.6)"), 4),
    ],
)
def test_fail_on(options: dict[str, Any], arguments: tuple[str, ...], status: int, given: Given) -> None:
    given(**options)
    assert run("--quiet", "--fail-on", "input-bound, sync-bound", *arguments) == status


def test_lines(given: Given, capsys: Caps) -> None:
    given()
    assert run("--seconds", "1") == 0
    _, unsure, *sure, last = capsys.readouterr().out.splitlines()
    bound = "pid 4242: python train0.py · input-bound: decode-cpu-workers"
    assert unsure.startswith("iofast monitor: pid 4242: python train0.py · unknown")
    assert all(line.startswith(f"iofast monitor: {bound}") for line in sure)
    assert last.startswith(f"iofast monitor: last: {bound}")
    assert 1 <= len(sure) < 10, "not a line for each of a hundred intervals"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 4), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_a_report(
    number: signal.Signals, status: int, given: Given, struck: Given, tmp_path: Path
) -> None:
    """Ctrl-C is the usual end."""
    given()
    before = signal.getsignal(number)
    struck(number)
    assert run("--quiet", "--report", str(tmp_path / "a.html"), "--fail-on", "input-bound") == status
    assert (tmp_path / "a.html").exists()
    assert signal.getsignal(number) is before


def test_a_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Caps) -> None:
    def judge(_snapshots: Sequence[Snapshot], _before: Verdict | None) -> Verdict:
        raise OSError(5, "input/output error")

    broken = Sources(made().find, made().watch, judge)
    monkeypatch.setattr(live, "machine", lambda _request, _program=None: broken)
    assert run("--seconds", "2") == 1
    assert capsys.readouterr().err == "iofast monitor: error: input/output error\n"


def test_its_output_and_status_are_its_own(given: Given, capfd: Caps, tmp_path: Path) -> None:
    given(last=20)
    report = tmp_path / "a.html"
    code = "import time; print('mine', flush=True); time.sleep(0.6); raise SystemExit(9)"
    assert run("--report", str(report), "--fail-on", "input-bound", "--", *PYTHON, code) == 9
    text, error = capfd.readouterr()
    assert text == "mine\n"
    assert "iofast monitor: ended: pid 4242: python train0.py · input-bound" in error
    assert "input-bound" in report.read_text()


def test_one_that_ends_at_once(given: Given, capfd: Caps) -> None:
    given(jobs=0)
    assert run("--", *PYTHON, "pass") == 0
    error = capfd.readouterr().err
    assert error.endswith("iofast monitor: the program ended before anything could be said of it\n")


def test_json_goes_to_stderr(given: Given, capfd: Caps) -> None:
    given()
    assert run("--json", "--once", "--", *PYTHON, "print('mine'); import time; time.sleep(0.3)") == 0
    text, error = capfd.readouterr()
    assert text == "mine\n"
    assert json.loads(error)["verdict"] == "input-bound"


@pytest.mark.parametrize(("name", "status"), [("missing", 127), (".", 126)])
def test_what_cannot_be_started(name: str, status: int, tmp_path: Path, capsys: Caps) -> None:
    assert run("--", str(tmp_path / name)) == status
    assert capsys.readouterr().err.startswith("iofast monitor: error: cannot start '")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (RuntimeError("of a\npackage"), "RuntimeError: of a package"),
        (OptionError("cannot be watched"), "cannot be watched"),
    ],
)
def test_whatever_goes_wrong_its_status_is_ours(
    broken: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capfd: Caps
) -> None:
    """A fault of ours or of a package behind a view: the program ends as it does."""

    def machine(_request: Request, _program: int | None = None) -> Sources:
        raise broken

    monkeypatch.setattr(live, "machine", machine)
    assert run("--", *PYTHON, "raise SystemExit(9)") == 9
    assert capfd.readouterr().err == f"iofast monitor: error: {words}; the program continues\n"


@pytest.mark.parametrize("closed", [False, True])
def test_nobody_reads_what_the_monitor_says(closed: bool) -> None:
    """`2>&1 | head -1` that has seen enough, or `2>&-` of a batch system."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "iofast", "monitor", "--no-stacks", "--", *PYTHON, "raise SystemExit(9)"]
    if closed:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    ended = subprocess.run(command, stderr=writer, stdout=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stdout) == (9, b"")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--interval", "0"), "--interval"),
        (("--seconds", "-1"), "--seconds"),
        (("--gpu", "-1"), "--gpu"),
        (("--pid", "0"), "--pid"),
        (("--pid", "1", "--", "true"), "after --"),
        (("python", "train.py"), "iofast monitor -- python"),
        (("--",), "found nothing"),
        (("--screen", "--json"), "--screen"),
        (("--fail-on", "slow"), "input-bound, transfer-bound"),
        (("--prometheus", "x"), "--prometheus"),
        (("--nonsense",), "--nonsense"),
        (("--fail-slower", "5%"), "--fail-slower was given without --compare"),
        (("--compare", "a", "b", "--fail-slower=much"), "--fail-slower must be a share such as 5%"),
        (("--compare", "a", "b", "--fail-slower=100%"), "--fail-slower must be a share such as 5%"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, capsys: Caps) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


# --- what a change gained: the change and its noise, the exit status, and files that are something else


def intervals(path: Path, *rates: float | None, **changes: Any) -> Path:
    own = {"verdict": "input-bound", "cause": "storage", "stall": {"low": 0.3, "high": 0.4}}
    lines = [{**own, **changes, "figures": {"images_per_s": rate, "main_cores": 1.0}} for rate in rates]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_change_with_its_noise(tmp_path: Path) -> None:
    before = intervals(tmp_path / "before", 100.0, 110.0, 90.0)
    after = intervals(tmp_path / "after", 200.0, 220.0, 180.0, verdict="compute-bound", cause=None)
    text, rate = compare(before, after)
    assert rate is not None
    assert rate.value == pytest.approx(1.0)
    error = 10 / 3**0.5 / 100  # of each mean, relative
    assert rate.error == pytest.approx(2 * (2 * error**2) ** 0.5)
    assert "| verdict | input-bound: storage | compute-bound |  |" in text
    assert "| images/s | 100 ± 11.5 | 200 ± 23.1 | +100.0% |" in text
    assert text.endswith("100.0% faster (± 32.7%).")


def test_noise_is_no_change(tmp_path: Path) -> None:
    before, after = intervals(tmp_path / "a", 100.0, 140.0, 60.0), intervals(tmp_path / "b", 95.0, 120.0, 70.0)
    text, rate = compare(before, after)
    assert "No change beyond the noise" in text
    assert not slower(rate, 0.0)


def test_no_rates(tmp_path: Path) -> None:
    text, rate = compare(intervals(tmp_path / "a", None), intervals(tmp_path / "b", 95.0))
    assert rate is None
    assert not slower(rate, 0.0)
    assert "| main CPU | 1 ± 0 cores | 1 ± 0 cores | +0.0% |" in text


@pytest.mark.parametrize(("limit", "status"), [("5%", 4), ("0.05", 4), ("15%", 0)])
def test_exit_status(tmp_path: Path, limit: str, status: int, capsys: Caps) -> None:
    before, after = intervals(tmp_path / "a", 100.0, 100.0), intervals(tmp_path / "b", 90.0, 90.0)
    assert main(["monitor", "--compare", str(before), str(after), "--fail-slower", limit]) == status
    assert "10.0% slower" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"x": 1}'])
def test_other_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(SourceError, match="expected the output of iofast monitor --json"):
        compare(intervals(tmp_path / "a", 1.0), tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        compare(tmp_path / "none", tmp_path / "other")
