"""Waits for anything but a batch: answers of another process, and requests."""

import multiprocessing
import socket
import time
from typing import Any


class Answers:
    """A process that answers each question after so many seconds."""

    def __init__(self, seconds: float) -> None:
        context = multiprocessing.get_context("fork")
        self.questions, self.answers = context.Queue(), context.Queue()
        context.Process(target=_answer, args=(self.questions, self.answers, seconds), daemon=True).start()


def _answer(questions: Any, answers: Any, seconds: float) -> None:
    while True:
        question = questions.get()
        time.sleep(seconds)
        answers.put(question)


def serve(seconds: float) -> tuple[int, int]:
    """Wait for requests, of which none comes; return start and end in monotonic nanoseconds."""
    since = time.monotonic_ns()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        while time.monotonic_ns() < since + 1e9 * seconds:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connection.close()
    return since, time.monotonic_ns()
