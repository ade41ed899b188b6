"""Training loops found in source: where each shape of loop gets its batches, and which loops are no training."""

from __future__ import annotations

import pytest

from iofast.monitor.probe.loops import Loops

# A line that ends with `# batch` is where the loop gets its batch; no other line is.
SHAPES = {
    "a generator": """
for x in batches():  # batch
    loss = net(x).sum()
    loss.backward()
""",
    "behind a bar, over several lines": """
for epoch in range(3):
    for number, batch in enumerate(  # batch
        tqdm(  # batch
            prefetched(loader),  # batch
        )  # batch
    ):  # batch
        loss = net(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
""",
    "beside a counter": """
for number, x in zip(count(), batches()):  # batch
    step(x)

def step(x):
    net(x).sum().backward()
""",
    "a queue": """
while True:
    x, y = queue.get()  # batch
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
""",
    "a queue until it is empty": """
while (x := queue.get()) is not None:  # batch
    net(x).sum().backward()
""",
    "a future": """
def main():
    for step in range(100):
        x = ahead.popleft().result()  # batch
        ahead.append(pool.submit(load, step))
        loss = net(x).sum()
        loss.backward()
""",
    "next()": """
it = iter(loader)
for step in range(n):
    x = next(it)  # batch
    net(x).sum().backward()
""",
    "a method that makes one step": """
class Trainer:
    def run(self):
        while True:
            self.one()

    def one(self):
        x = self.queue.get()  # batch
        loss = self.net(x)
        loss.backward()
        self.optimizer.step()
""",
    "asyncio": """
async def train():
    async for x in batches():  # batch
        net(x).sum().backward()
""",
}
NO_BATCH = {
    "epochs": """
for epoch in epochs():
    loader = make(epoch)
    for x in loader:  # batch
        net(x).sum().backward()
""",
    "jobs": """
def train(job):
    for x in job:  # batch
        net(x).sum().backward()

while True:
    job = jobs.get()
    train(job)
""",
    "answers of another process": """
for x in loader:  # batch
    questions.put(x)
    y = answers.get()
    loss = criterion(y)
    loss.backward()
""",
    "answers to what a counting loop sends": """
while True:
    questions.put(weights)
    y = answers.get()
    loss = criterion(y)
    loss.backward()
""",
    "gradients of other processes": """
while True:
    weights.put(net.state_dict())
    loss = results.get()
    loss.backward()
    optimizer.step()
""",
    "a generator that trains": """
def fit():
    for x in loader:  # batch
        loss = net(x)
        loss.backward()
        yield loss

for loss in fit():
    print(loss)
""",
    "requests": """
for request in requests():
    with torch.no_grad():
        reply(net(request))
""",
    "an evaluation": """
model.train(False)
for x in loader:
    model.eval()
    total += criterion(model(x))
""",
    "no Python": "for x in batches(:\n    loss.backward()\n",
    "another encoding": "\0",
}


def batch_lines(text: str) -> set[int]:
    """Where a loop gets a batch."""
    return {line for loop in Loops(text).loops for line in (*loop.head, *loop.gets)}


@pytest.mark.parametrize("name", [*SHAPES, *NO_BATCH])
def test_where_a_loop_gets_its_batch(name: str) -> None:
    text = (SHAPES | NO_BATCH)[name]
    assert batch_lines(text) == {at for at, line in enumerate(text.split("\n"), 1) if line.endswith("# batch")}


def test_a_file_that_was_edited_since() -> None:
    """Its lines are another function's now."""
    (loop,) = Loops(SHAPES["a future"]).of("main")
    assert (loop.gets, loop.first <= 6 <= loop.last) == ({4}, True)
    assert Loops(SHAPES["a future"]).of("prepare") == []


def test_what_an_event_loop_runs() -> None:
    text = """
import asyncio

async def batches():
    yield await fetch()

async def train():
    async for x in batches():
        net(x).sum().backward()

async def serve():
    async for request in requests():
        await answer(request)

async def main(mode):
    await train()

asyncio.run(main(1))
asyncio.run(serve())
"""
    (loop,) = Loops(text).run_at(18)
    assert (loop.function, loop.awaits, loop.fed) == ("train", (8,), True)
    assert Loops(text).run_at(19) == []
    logging = text.replace("backward()", "backward()\n        await log()")
    assert not Loops(logging).run_at(19)[0].fed, "it waits for its log as well"


def test_hostile_files_are_no_trouble() -> None:
    assert Loops("(" * 100_000).loops == []
    assert Loops("-" * 100_000 + "1").loops == []
    calls = "\n".join(f"def f{n}(x):\n    f{n + 1}(x)\n    f{n - 1}(x)" for n in range(300))
    assert Loops(f"{calls}\nfor x in y():\n    f0(x)\n").loops == [], "functions that call each other end"
