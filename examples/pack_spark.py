"""Pack images on a Spark cluster whose executors all see source and target.

    spark-submit examples/pack_spark.py SRC DST --parts 64 [--size 256]

Spark packs a part again on another executor if one is lost. `python` instead of `spark-submit` runs on this machine.
"""

import argparse
from functools import partial

from pyspark.sql import SparkSession

from iofast.packing import pack, pack_part

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    options = {"resize": args.size}

    spark = SparkSession.builder.appName("iofast pack").getOrCreate()
    one = partial(pack_part, args.source, args.target, total=args.parts, workers=1, **options)
    spark.sparkContext.parallelize(range(1, args.parts + 1), args.parts).foreach(one)
    spark.stop()
    print(pack(args.source, args.target, finish=True, **options).to_json())
