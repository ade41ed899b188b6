"""Names of other libraries' transforms, and what to use instead: for messages."""

_IN_MAP_SAMPLE = "is not built in; call torchvision's on the sample's image in the loader's map_sample"
_ARE_TENSORS = "is not needed: batches are tensors, and the loader's dtype=torch.float32 scales them to [0, 1]"
_NOT_BUILT_IN = (
    *("AugMix", "ElasticTransform", "GaussianNoise", "LinearTransformation"),
    *("RandomIoUCrop", "RandomPhotometricDistort", "RandomZoomOut"),
)

# by the class's own name, without its module; a hint follows the name in a message
HINTS = {
    **dict.fromkeys(_NOT_BUILT_IN, _IN_MAP_SAMPLE),
    **dict.fromkeys(("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToTorchImage"), _ARE_TENSORS),
    **dict.fromkeys(("ConvertImageDtype", "ToDtype"), "is the loader's option dtype=, such as dtype=torch.float32"),
    **dict.fromkeys(("Compose", "Sequential"), "is not needed: a transform is a plain list, transform=[…, …]"),
    **dict.fromkeys(("Cutout", "CoarseDropout", "RandomErase"), "is RandomErasing here"),
    **dict.fromkeys(("HorizontalFlip", "RandomFlip"), "is RandomHorizontalFlip here"),
    **dict.fromkeys(("FiveCrop", "TenCrop"), "is Views of CornerCrop here; docs/transforms.md has the list"),
    "CenterCropOrPad": "is CenterCrop(…, pad_if_needed=True) here",
    "CenterCropRGBImageDecoder": "is ResizedCenterCrop here",
    "Cutmix": "is CutMix here",
    "InterpolationMode": "is not needed: interpolation is a string such as 'bicubic' (torchvision's mode works too)",
    "Lambda": "is the loader's map_sample for one sample, map_batch for a batch",
    "Mixup": "is MixUp here",
    "NormalizeImage": "is Normalize here, with max_value=255 for means of pixels from 0 to 255",
    "RandomCropOrPad": "is RandomCrop(…, pad_if_needed=True) here",
    "RandomResizedCropAndInterpolation": "is RandomResizedCrop here, with interpolation='random'",
    "RandomResizedCropRGBImageDecoder": "is RandomResizedCrop here",
    "RandomSizedCrop": "is RandomResizedCrop here",
    "Scale": "is Resize here",
    "ToDevice": "is the loader's option device=",
    "ToPILImage": "is not needed: a FastDataset gives PIL images by itself, a FastLoader tensors",
    "functional": "is not built in; torchvision has these",
    "v2": "is this module: the transforms have the names and parameters of torchvision's v2",
}
