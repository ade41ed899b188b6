"""Megatron-Energon: `energon prepare`, then every payload at the place that its index says."""

import hashlib
import json
import pathlib
import shutil
import sqlite3
import subprocess
import sys

folder = pathlib.Path(sys.argv[2]) / "energon"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
for shard in sorted(pathlib.Path(sys.argv[1]).glob("train-*.tar")):
    shutil.copy(shard, folder)
energon = pathlib.Path(sys.executable).with_name("energon")
options = ["--split-parts", "train:.*", "--num-workers", "1", "--no-progress"]
answers = "n\n"  # no dataset.yaml: it would say what the fields mean to a model
command = [energon, "prepare", folder, *options]
prepared = subprocess.run(command, input=answers, text=True, stdout=sys.stderr, timeout=300)
assert prepared.returncode == 0, prepared
tars = sorted(folder.glob("*.tar"))
index = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
query = """select s.tar_file_id, s.sample_key, p.part_name, p.content_byte_offset, p.content_byte_size
    from samples s join sample_parts p on p.tar_file_id = s.tar_file_id and p.sample_index = s.sample_index
    order by s.tar_file_id, s.sample_index"""
records = {}
for number, key, part, offset, size in index.execute(query):
    with tars[number].open("rb") as file:
        file.seek(offset)
        records.setdefault(key, {})[part] = file.read(size)
for key, parts in records.items():
    print(json.dumps([key, hashlib.sha256(parts["jpg"]).hexdigest(), int(parts["cls"])]))
