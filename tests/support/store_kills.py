"""A program that packs into a bucket in children that are killed after a number of requests, until one ends."""

KILLED = """
import functools, json, os, random, signal, sys
sys.path.insert(0, "tests/support")
from iofast.packing import pack, run
from iofast.packing.pool import WorkerPool
from iofast.remote.store import Store
from object_store import Bucket

source, url, options, endpoint, name, seed, least = json.loads(sys.argv[1])
bucket, chance, kills = Bucket(endpoint, name), random.Random(seed), 0
run.WorkerPool = functools.partial(WorkerPool, fork=True)

def killed(left, first):
    whole = Store._patiently
    async def patiently(self, *arguments):
        nonlocal left
        left -= 1
        if left == 0 and first:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await whole(self, *arguments)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    Store._patiently = patiently
    pack(source, url, **options)
    os._exit(0)

while True:
    child = os.fork()
    if not child:
        killed(chance.randrange(5, least * (kills + 1)), chance.random() < 0.5)  # joining begins anew, so leave it time
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
    kills += 1
    names = bucket.request("GET", query="?list-type=2&prefix=out/").decode()
    if "out/t.tar.manifest" in names:  # it comes last
        assert all(f"out/t-{number:06d}.tar<" in names for number in range(5)) and "out/t.tar.index" in names, names
print(kills)
"""
