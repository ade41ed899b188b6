"""Input pipelines of public training scripts, with `iofast run` and without, in turn.

    python -m benchmarks.run_pipelines FOLDER [--only dino] [--epochs 3]

FOLDER has a folder of JPEGs per class. It needs torchvision, timm, datasets and httpx2. Two processes with two workers
each wait for the name of a pipeline; both get it in turn. The first epoch must be equal bit by bit, with labels, order
and the state of the generators behind it; the rate is of the others. To benchmarks/results/run-pipelines.md. Pipelines
are named after the scripts that have them: torchvision's references with their options, "weights" of torchvision's
models, timm's train.py, "evaluation" of the one before, Pillow "by hand".
"""

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import measure
from tools import machine

WORKER = r"""
import hashlib, io, random, sys, time
from pathlib import Path
import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset

operators = torch.library.Library("torchvision", "FRAGMENT")  # beside a torch for the CPU they are missing
for operator in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, operator):
        operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from torchvision import models, transforms as V1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BICUBIC = InterpolationMode.BICUBIC
FLIP, TENSOR, NORM = V1.RandomHorizontalFlip(), V1.ToTensor(), V1.Normalize(MEAN, STD)
END = [TENSOR, NORM]


class Blur:
    def __init__(self, p=1.0, low=0.1, high=2.0):
        self.p, self.low, self.high = p, low, high

    def __call__(self, image):
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.low, self.high)))


class Solarize:
    def __init__(self, p):
        self.p = p

    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < self.p else image


class Views:
    def __init__(self, *views):
        self.views = views

    def __call__(self, image):
        return [view(image) for view in self.views]


class Files(Dataset):
    def __init__(self, folder, make):
        self.samples, self.make = ImageFolder(folder).samples, make

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        path, label = self.samples[number]
        return self.make(path), label


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for number in range(worker.id, len(self.files), worker.num_workers):
            yield self.files[number]


def jitter(b, c, s, h, p=0.8):
    return V1.RandomApply([V1.ColorJitter(b, c, s, h)], p=p)


def rrc(size=224, low=0.08, high=1.0, interpolation=InterpolationMode.BILINEAR):
    return V1.RandomResizedCrop(size, scale=(low, high), interpolation=interpolation)


def references(*middle, erase=0.0):
    steps = [V1.RandomResizedCrop(224, antialias=True), FLIP, *middle, V1.PILToTensor()]
    steps += [V1.ConvertImageDtype(torch.float), NORM]
    return V1.Compose(steps + ([V1.RandomErasing(p=erase)] if erase else []))


def moco(*, blur):
    steps = [rrc(low=0.2)] + ([jitter(0.4, 0.4, 0.4, 0.1)] if blur else [V1.RandomGrayscale(p=0.2)])
    gray = [V1.RandomGrayscale(p=0.2), V1.RandomApply([Blur()], p=0.5)]
    steps += gray if blur else [V1.ColorJitter(0.4, 0.4, 0.4, 0.4)]
    return V1.Compose([*steps, FLIP, *END])


def byol(blur, solarize, low=0.08, hue=0.1, saturation=0.2):
    steps = [rrc(low=low, interpolation=BICUBIC), FLIP, jitter(0.4, 0.4, saturation, hue), V1.RandomGrayscale(p=0.2)]
    return V1.Compose([*steps, Blur(blur), Solarize(solarize), *END])


def dino():
    colours = [FLIP, jitter(0.4, 0.4, 0.2, 0.1), V1.RandomGrayscale(p=0.2)]
    wide = rrc(224, 0.4, 1.0, BICUBIC)
    first = V1.Compose([wide, *colours, Blur(1.0), *END])
    second = V1.Compose([wide, *colours, Blur(0.1), Solarize(0.2), *END])
    local = V1.Compose([rrc(96, 0.05, 0.4, BICUBIC), *colours, Blur(0.5), *END])
    return Views(first, second, *[local] * 8)


def swav():
    rest = [FLIP, jitter(0.8, 0.8, 0.8, 0.2), V1.RandomGrayscale(p=0.2), Blur(0.5), *END]
    return Views(*[V1.Compose([rrc(224, 0.14), *rest])] * 2, *[V1.Compose([rrc(96, 0.05, 0.14), *rest])] * 6)


def timm(**options):
    from timm.data import create_transform

    return create_transform(input_size=224, mean=MEAN, std=STD, **options)


def srgan(image):
    large = V1.RandomCrop(88)(image)
    return TENSOR(large), TENSOR(V1.Resize(22, BICUBIC)(large))


def by_hand(path):
    image = Image.open(path).convert("RGB").resize((256, 256), Image.BILINEAR)
    x, y = random.randint(0, 32), random.randint(0, 32)
    array = np.array(image.crop((x, y, x + 224, y + 224)), dtype=np.float32) / 255
    return torch.from_numpy((array - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)


def hugging_face(folder, transform):
    import datasets

    datasets.disable_progress_bars()
    samples = ImageFolder(folder).samples
    table = datasets.Dataset.from_dict({"image": [path for path, _ in samples], "labels": [n for _, n in samples]})

    def apply(batch):
        batch["pixel_values"] = [transform(image.convert("RGB")) for image in batch["image"]]
        return batch

    def collate(batch):
        pixels = torch.stack([each["pixel_values"] for each in batch])
        return {"pixel_values": pixels, "labels": torch.tensor([each["labels"] for each in batch])}

    return table.cast_column("image", datasets.Image()).with_transform(apply), collate


def two(view):
    return Views(view, view)


C = V1.Compose
RESIZED = [V1.Resize(256), V1.CenterCrop(224)]
OPEN = lambda make: lambda path: make(Image.open(path).convert("RGB"))
CLIP = [V1.Resize(224, BICUBIC), V1.CenterCrop(224), lambda image: image.convert("RGB"), *END]
HALF = [TENSOR, V1.Normalize([0.5], [0.5])]
SIMCLR = C([rrc(), FLIP, jitter(0.8, 0.8, 0.8, 0.2), V1.RandomGrayscale(p=0.2), V1.GaussianBlur(21), TENSOR])
TRANSFORMS = {
    "imagenet": lambda: C([rrc(), FLIP, *END]),
    "imagenet evaluation": lambda: C([*RESIZED, *END]),
    "references": references,
    "references v2": lambda: v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
        v2.PILToTensor(), v2.ToDtype(torch.float, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()]),
    "references, auto_augment imagenet": lambda: references(V1.AutoAugment()),
    "references, ra": lambda: references(V1.RandAugment()),
    "references, ta_wide": lambda: references(V1.TrivialAugmentWide(), erase=0.1),
    "references, augmix": lambda: references(V1.AugMix()),
    "jitter v2": lambda: v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.2), v2.PILToTensor(),
        v2.ToDtype(torch.float, scale=True), v2.Normalize(MEAN, STD)]),
    "transfer learning": lambda: C([V1.RandomResizedCrop(224), FLIP, *END]),
    "resnet50 weights": lambda: models.ResNet50_Weights.DEFAULT.transforms(),
    "efficientnet weights": lambda: models.EfficientNet_B0_Weights.DEFAULT.transforms(),
    "vit swag weights": lambda: models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1.transforms(),
    "simclr": lambda: two(SIMCLR),
    "moco v1": lambda: two(moco(blur=False)),
    "moco v2": lambda: two(moco(blur=True)),
    "moco v3": lambda: Views(byol(1.0, 0.0, saturation=0.2), byol(0.1, 0.2, saturation=0.2)),
    "simsiam": lambda: two(moco(blur=True)),
    "byol": lambda: Views(byol(1.0, 0.0), byol(0.1, 0.2)),
    "barlow twins": lambda: Views(byol(1.0, 0.0, hue=0.1), byol(0.1, 0.2, hue=0.1)),
    "dino": dino,
    "swav": swav,
    "mae": lambda: C([rrc(low=0.2, interpolation=BICUBIC), FLIP, *END]),
    "supcon": lambda: two(C([rrc(low=0.2), FLIP, jitter(0.4, 0.4, 0.4, 0.1), V1.RandomGrayscale(p=0.2), *END])),
    "timm default": lambda: timm(is_training=True),
    "timm deit": lambda: timm(is_training=True, color_jitter=0.3, auto_augment="rand-m6-mstd0.5-inc1",
        interpolation="bicubic", re_prob=0.25, re_mode="pixel"),
    "timm ra": lambda: timm(is_training=True, auto_augment="rand-m7-mstd0.5"),
    "timm original": lambda: timm(is_training=True, auto_augment="original"),
    "timm augmix": lambda: timm(is_training=True, auto_augment="augmix-m3-w3"),
    "timm 3-augment": lambda: C([rrc(interpolation=BICUBIC), FLIP,
        V1.RandomChoice([V1.Grayscale(3), Solarize(1.0), Blur()]), V1.ColorJitter(0.3, 0.3, 0.3), *END]),
    "timm prefetcher": lambda: timm(use_prefetcher=True),
    "timm evaluation": lambda: timm(interpolation="bicubic", crop_pct=0.875),
    "timm squash": lambda: timm(interpolation="bicubic", crop_pct=0.95, crop_mode="squash"),
    "clip": lambda: C([rrc(224, 0.9, 1.0, BICUBIC), *CLIP[2:]]),
    "clip evaluation": lambda: C(CLIP),
    "diffusers": lambda: C([V1.Resize(64), V1.CenterCrop(64), FLIP, *HALF]),
    "diffusers text to image": lambda: C([V1.Resize(512), V1.RandomCrop(512), FLIP, *HALF]),
    "dcgan": lambda: C([V1.Resize(64), V1.CenterCrop(64), TENSOR, V1.Normalize([0.5] * 3, [0.5] * 3)]),
    "style": lambda: C([V1.Resize(256), V1.CenterCrop(256), TENSOR, V1.Lambda(lambda x: x.mul(255))]),
    "cyclegan": lambda: C([V1.Resize([286, 286], BICUBIC), V1.RandomCrop(256), FLIP, *HALF]),
    "srgan": lambda: srgan,
    "vae": lambda: C([FLIP, V1.CenterCrop(148), V1.Resize(64), TENSOR]),
    "metric learning": lambda: C([V1.RandomResizedCrop(227), FLIP, TENSOR, V1.Lambda(lambda x: x[[2, 1, 0]] * 255)]),
    "datasets": lambda: C([rrc(), FLIP, *END]),
    "datasets evaluation": lambda: C([*RESIZED, *END]),
    "datasets mae": lambda: C([rrc(low=0.2, interpolation=BICUBIC), FLIP, *END]),
    "rotations": lambda: C([V1.Resize((256, 256)), V1.RandomVerticalFlip(), FLIP, V1.RandomRotation(10), *END]),
    "gray": lambda: C([V1.Grayscale(), V1.Resize((128, 128)), TENSOR, V1.Normalize([0.5], [0.5])]),
    "stream": lambda: C([rrc(), FLIP, *END]),
}
NAMES = [*TRANSFORMS, "by hand"]


def loader_of(name, folder):
    collate = None
    if name.startswith("datasets"):
        data, collate = hugging_face(folder, TRANSFORMS[name]())
    elif name == "by hand":
        data = Files(folder, by_hand)
    elif name == "stream":
        data = Stream(Files(folder, OPEN(TRANSFORMS[name]())))
    else:
        data = ImageFolder(folder, TRANSFORMS[name]())
    if name == "timm prefetcher":
        from timm.data.loader import fast_collate as collate
    return DataLoader(data, 32, shuffle=None if name == "stream" else True, num_workers=2, persistent_workers=True,
                      drop_last=True, collate_fn=collate)


def measured(name, folder, epochs):
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    loader = loader_of(name, folder)
    digest, count = hashlib.sha256(), 0
    for epoch in range(epochs):
        if epoch == 1:
            digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
            begun = time.perf_counter()
        for batch in loader:
            if epoch == 0:
                for each in tree_leaves(batch):
                    digest.update(each.contiguous().numpy().tobytes())
            else:
                count += loader.batch_size
    return digest.hexdigest(), count / (time.perf_counter() - begun)


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr
    print(*NAMES, sep="|", file=out, flush=True)
    for line in sys.stdin:
        try:
            print(*measured(line.strip(), sys.argv[1], int(sys.argv[2])), file=out, flush=True)
        except Exception as error:
            print("error", repr(error)[-300:].replace("\n", " "), file=out, flush=True)
"""


def said(process: subprocess.Popen[str], line: str = "") -> str:
    """What a process prints next, after a line of input if there is one."""
    if line:
        print(line, file=process.stdin, flush=True)
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def main() -> None:
    parser = measure.parser(__doc__, photos=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", metavar="NAME", help="pipelines whose names begin like this")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    script = [sys.executable, "-c", WORKER, str(args.folder), str(args.epochs)]
    commands = script, [sys.executable, "-m", "iofast", "run", "--quiet", "--strict", "--", *script]
    plain, ours = (
        subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for each in commands
    )
    names = said(plain).split("|")
    said(ours)
    rows, times = [], []
    for name in names:
        if args.only and not name.startswith(tuple(args.only)):
            continue
        (one, before), (other, after) = (said(process, name).split(" ", 1) for process in (plain, ours))
        if "error" in (one, other):
            raise RuntimeError(f"{name}: {before}, {after}")
        times.append(float(after) / float(before))
        equal = "equal" if one == other else "DIFFERENT"
        rows.append((name, f"{float(before):,.0f}", f"{float(after):,.0f}", f"{times[-1]:.2f}", equal))
        print(*rows[-1], flush=True)
    twice = sum(each >= 2 for each in times)
    equal = "all equal" if all(row[-1] == "equal" for row in rows) else "DIFFERENT"
    header = ("pipeline", "plain, images/s", "`iofast run`", "times", "first epoch")
    page = f"""# Pipelines of public scripts with `iofast run`

{machine.describe()}

{len(times)} pipelines, two workers, a loop without a network, {len([*args.folder.glob("*/*")])} photographs as files.
Geometric mean {statistics.geometric_mean(times):.2f}; {twice} ({twice / len(times):.0%}) at least twice as fast; first
epochs, labels, order and the state of the generators behind them: {equal}, with `--strict`.

{measure.table(header, rows)}
"""
    if not args.only:
        measure.write("run-pipelines", page, args.output)


if __name__ == "__main__":
    main()
