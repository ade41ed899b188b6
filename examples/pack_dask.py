"""Pack images on a Dask cluster whose workers all see source and target.

    python examples/pack_dask.py SRC DST --parts 64 [--scheduler tcp://host:8786] [--size 256]

A part whose worker is lost is packed by another one. Without --scheduler Dask runs on this machine.
"""

import argparse
from functools import partial

from distributed import Client, progress

from iofast.packing import pack, pack_part

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--scheduler")
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    options = {"resize": args.size}

    here = {} if args.scheduler else {"threads_per_worker": 1}
    with Client(args.scheduler, **here) as client:
        one = partial(pack_part, args.source, args.target, total=args.parts, workers=1, **options)
        reports = client.map(one, range(1, args.parts + 1), pure=False)
        progress(reports)
        client.gather(reports)
    print(pack(args.source, args.target, finish=True, **options).to_json())
