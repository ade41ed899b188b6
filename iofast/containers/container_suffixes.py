"""Suffixes of containers and of other files of data. Imports nothing, because the monitor's probes read them too."""

LMDB = ".lmdb"
TAR = (".tar",)
TFRECORD = (".tfrecord", ".tfrecords")
WRITTEN = (LMDB, *TAR, *TFRECORD)  # a target's suffix chooses one of these

ARROW = ".arrow"
PARQUET = ".parquet"  # images, or a manifest
OPENED = (*WRITTEN, ARROW)  # files that `open_reader` opens by their suffix
COMPRESSED_TAR = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")
LISTS = (".csv", ".tsv", ".txt", ".jsonl", PARQUET)  # manifests that name image files; `source.table` reads them
OF_OTHERS = (ARROW, ".beton", ".mds", ".mdb", ".rec", ".h5", ".hdf5", ".npy", ".npz", ".zip")  # never written by iofast
