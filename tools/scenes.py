"""Scenes that look photographic to a codec and to a small network, for sample_photographs.py.

Natural images have an amplitude spectrum of about 1/f. Every surface here is a crop of such a noise field, shaped by a
scene, lit from a side and seen by a camera with noise; so JPEGs of them have the size, the spectrum and the decoding
cost of photographs. The classes differ in structure; light, colours and framing vary inside each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
POOL = 1024  # pixels a side of the noise fields that all surfaces are cut from


@dataclass
class Surfaces:
    """1/f noise to cut surfaces from; a field takes 100 ms, a crop of it nothing."""

    seed: int
    fields: dict[tuple[float, float], Floats] = field(default_factory=dict)

    def cut(self, rng: np.random.Generator, shape: tuple[int, int], slope: float = 1.0, stretch: float = 1.0) -> Floats:
        """A surface of `shape`, mean 0, deviation 1. `stretch` > 1 makes it streaky across, < 1 streaky down."""
        key = (slope, stretch)
        if key not in self.fields:
            self.fields[key] = self._field(slope, stretch)
        y, x = (int(rng.integers(0, POOL - side)) for side in shape)
        surface = self.fields[key][y : y + shape[0], x : x + shape[1]]
        return surface[:, :: rng.choice((-1, 1))]

    def _field(self, slope: float, stretch: float) -> Floats:
        rng = np.random.default_rng([self.seed, round(100 * slope), round(100 * stretch)])
        fy, fx = np.fft.fftfreq(POOL)[:, None], np.fft.rfftfreq(POOL)[None, :]
        frequency = np.hypot(fy, fx * stretch)
        frequency[0, 0] = np.inf  # no mean
        spectrum = np.exp(2j * np.pi * rng.random(frequency.shape)) / frequency**slope
        noise = np.fft.irfft2(spectrum, (POOL, POOL))
        return np.asarray((noise - noise.mean()) / noise.std(), np.float32)


@dataclass(frozen=True)
class Camera:
    """The source of a picture's randomness and surfaces, and its size."""

    rng: np.random.Generator
    surfaces: Surfaces
    height: int
    width: int

    def cut(self, slope: float = 1.0, stretch: float = 1.0) -> Floats:
        return self.surfaces.cut(self.rng, (self.height, self.width), slope, stretch)

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    @property
    def grid(self) -> tuple[Floats, Floats]:
        """Coordinates y, x in shares of the picture's height."""
        y, x = np.mgrid[: self.height, : self.width].astype(np.float32)
        return y / self.height, x / self.height

    def paint(self, surface: Floats, dark: tuple[float, ...], light: tuple[float, ...]) -> Floats:
        """Colour a surface: −2 deviations are `dark`, +2 are `light`, both jittered a little."""
        jitter = self.rng.normal(0, 0.04, 3)
        share = np.clip(surface / 4 + 0.5, 0, 1)[..., None]
        return np.asarray((np.array(dark) + jitter) * (1 - share) + (np.array(light) + jitter) * share, np.float32)


def meadow(camera: Camera) -> Floats:
    """Grass up to a horizon, clouds above."""
    y, _ = camera.grid
    horizon = camera.between(0.3, 0.6) + 0.05 * camera.cut(1.6, 4.0)
    grass = camera.paint(camera.cut(0.9) * (0.4 + y), (0.10, 0.22, 0.03), (0.55, 0.72, 0.25))
    return np.where((y > horizon)[..., None], grass, _sky(camera, y))


def sea(camera: Camera) -> Floats:
    """Waves up to a straight horizon, the sun's glitter on them."""
    y, x = camera.grid
    waves = camera.cut(1.0, 6.0) * (0.3 + y)
    glitter = np.exp(-(((x - camera.between(0.2, 1.1)) / 0.15) ** 2)) * (waves > 0.6)
    water = camera.paint(waves, (0.02, 0.12, 0.20), (0.30, 0.55, 0.62)) + 0.5 * glitter[..., None]
    return np.where((y > camera.between(0.25, 0.65))[..., None], water, _sky(camera, y))


def forest(camera: Camera) -> Floats:
    """Trunks from top to bottom before leaves and patches of light."""
    _, x = camera.grid
    scene = camera.paint(camera.cut(0.8), (0.02, 0.08, 0.02), (0.45, 0.60, 0.25))
    texture, lean = camera.cut(0.9, 0.16), 0.01 * camera.cut(1.8)
    for _ in range(int(camera.rng.integers(4, 10))):
        width, centre = camera.between(0.02, 0.08), camera.between(0, camera.width / camera.height)
        near = np.flatnonzero(np.abs(x[0] - centre) < width + 0.06)  # the columns it can touch, leaning
        across = (x[:, near] - centre - lean[:, near]) / width
        bark = camera.paint(texture[:, near] - across, (0.06, 0.04, 0.03), (0.42, 0.34, 0.27))
        scene[:, near] = np.where((np.abs(across) < 1)[..., None], bark, scene[:, near])
    return scene


def pebbles(camera: Camera) -> Floats:
    """Round stones, lit from the upper left, on gravel."""
    scene = camera.paint(camera.cut(0.7), (0.12, 0.10, 0.09), (0.55, 0.50, 0.46))
    for _ in range(int(camera.rng.integers(25, 60))):
        tone = camera.between(0.3, 0.8)
        _ball(camera, scene, camera.between(0.04, 0.12), (tone, tone * 0.96, tone * camera.between(0.8, 1)))
    return scene


def blossom(camera: Camera) -> Floats:
    """Flowers with petals on leaves."""
    scene = camera.paint(camera.cut(1.1), (0.03, 0.12, 0.04), (0.30, 0.50, 0.20))
    light = camera.cut(1.3)
    for _ in range(int(camera.rng.integers(5, 14))):
        window, y, x = _window(camera, camera.between(0.06, 0.18))
        distance, angle = np.hypot(y, x), np.arctan2(y, x)
        petals = distance < 0.65 + 0.35 * np.cos(int(camera.rng.integers(5, 9)) * angle + camera.between(0, 6))
        bright = (0.95, camera.between(0.6, 0.9), 0.9)
        colour = camera.paint(light[window] - 2 * distance + 1, (0.5, 0.1, 0.3), bright)
        scene[window] = np.where(petals[..., None], colour, scene[window])
        scene[window] = np.where((distance < 0.2)[..., None], np.float32((0.85, 0.65, 0.1)), scene[window])
    return scene


def night(camera: Camera) -> Floats:
    """Lamps out of focus in the dark."""
    scene = camera.paint(camera.cut(1.4), (0.0, 0.0, 0.03), (0.16, 0.12, 0.16))
    for _ in range(int(camera.rng.integers(10, 30))):
        window, y, x = _window(camera, camera.between(0.02, 0.1))
        disc = np.clip((1 - np.hypot(y, x)) * 6, 0, 1)[..., None]
        colour = np.float32((1, camera.between(0.5, 0.95), camera.between(0.1, 0.9)))
        scene[window] += disc * colour * camera.between(0.2, 0.7)
    return scene


SCENES: dict[str, Callable[[Camera], Floats]] = {
    scene.__name__: scene for scene in (blossom, forest, meadow, night, pebbles, sea)
}


def photograph(name: str, camera: Camera) -> NDArray[np.uint8]:
    """Take one picture of scene `name`: uint8 (H, W, 3). Light falls off to a side, exposure and white vary."""
    scene = np.asarray(SCENES[name](camera), np.float32)
    y, x = camera.grid
    light = 1 + camera.between(-0.3, 0.3) * (x - 0.66) + camera.between(-0.2, 0.2) * (y - 0.5)
    white = camera.rng.normal(1, 0.06, 3) * camera.between(0.8, 1.15)
    noise = camera.rng.normal(0, camera.between(0.004, 0.02), scene.shape)
    linear = np.clip(scene * light[..., None] * white + noise, 0, 1)
    return np.asarray(255 * linear + 0.5, np.uint8)


def _sky(camera: Camera, y: Floats) -> Floats:
    clouds = np.clip(camera.cut(1.5, 2.0) - camera.between(-1, 1), -2, 2)
    return camera.paint(clouds + 1.5 * y - 0.5, (0.25, 0.45, 0.75), (0.92, 0.93, 0.95))


def _ball(camera: Camera, scene: Floats, size: float, colour: tuple[float, ...]) -> None:
    """Paint a lit ball into `scene`."""
    window, v, u = _window(camera, size)
    inside = u * u + v * v < 1
    depth = np.sqrt(np.clip(1 - u * u - v * v, 0, 1))
    texture = 0.08 * camera.surfaces.cut(camera.rng, (inside.shape[0], inside.shape[1]), 0.9)
    shade = np.clip(0.25 + 0.75 * (depth - 0.5 * u - 0.6 * v) / 1.27 + texture, 0, 1)
    scene[window] = np.where(inside[..., None], shade[..., None] * np.float32(colour), scene[window])


def _window(camera: Camera, size: float) -> tuple[tuple[slice, slice], Floats, Floats]:
    """A place for something of radius `size`: the part of the picture it can touch, and coordinates −1 … 1 in it."""
    cy, cx, radius = camera.between(0, camera.height), camera.between(0, camera.width), size * camera.height
    rows = slice(max(0, int(cy - radius)), min(camera.height, int(cy + radius) + 2))
    columns = slice(max(0, int(cx - radius)), min(camera.width, int(cx + radius) + 2))
    y, x = np.mgrid[rows, columns].astype(np.float32)
    return (rows, columns), (y - cy) / radius, (x - cx) / radius
