"""A world of shapes, drawn by code: users who photograph the few kinds of things that they like, each with a camera of their own.

Everything federated learning meets in photographs, in small: few users have most pictures, each user's classes, grounds and
camera differ from the others', and every picture has a class, several labels of two levels, a mask and boxes.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.sources.base import MOST_BYTES, SOURCES, About, Source, Sources
from fedlens.data.sources.shape_drawing import NOISE, SHAPES, Floats, Scenes, draw, extents, noise_weight

COLOURS = {"red": (220, 45, 45), "yellow": (245, 205, 55), "green": (45, 170, 85), "blue": (50, 95, 225)}
FILLS = tuple(f"{pattern} {colour}" for pattern in ("plain", "striped") for colour in COLOURS)
FINE = tuple(f"{fill} {shape}" for shape in SHAPES for fill in FILLS)  # by shape, then by colour and pattern
OBJECTS = 3  # in a picture, at most
BLOCK = 1 << 14  # pictures that are thought up together
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}  # of the users
GROUNDS = np.array(  # how the two waves of a ground make its texture: plain, shaded, striped, chequered, dotted
    [[0, 0, 0, 0], [0.5, 2, 0, 0], [0.5, 6, 0, 0], [0.5, 0, 0, 40], [-0.2, 5, 5, 0]], dtype=np.float32
)
SHADED = 1
VERSION = 1  # of what is drawn from the same settings


@SOURCES.register("shapes")
class Shapes(Source):
    """Pictures of shapes, thought up and drawn from a seed: no files, any number of users, and columns for every task.

    users, images    how many there are in all; 80 % of the users train, 10 % validate, 10 % test, none does two of these
    size             of the square pictures
    concentration    of each user's taste for shapes, q ~ Dir(concentration · p), p even: small values, few kinds a user
    exponent         of the power law by which users have many pictures, P(n) ∝ n^−exponent; each has one at least
    mask             whether to draw masks; class 0 is then the background, in all columns
    pictures         whether to draw pictures at all: without, millions of users are there in seconds, for partitions and statistics
    cache            a folder to draw into and map into memory, now and whenever these settings come again; none: in memory

    `label` is the shape of the largest object, `labels` says which shapes there are, `fine_labels` (`FINE` names them) which
    shapes in which colour and pattern, `box_label` and `boxes` (left, top, right, bottom, in pixels) what is where, at most
    three objects that neither overlap nor leave the picture. `client` is the user's number.
    """

    users: Annotated[int, Field(ge=10, le=10**8)] = 300
    images: Annotated[int, Field(ge=10)] = 20_000
    size: Annotated[int, Field(ge=16, le=512)] = 32
    seed: int = 0
    concentration: Annotated[float, Field(gt=0)] = 2.0
    exponent: Annotated[float, Field(gt=1)] = 2.2
    mask: bool = False
    pictures: bool = True
    cache: Path | None = None

    about: ClassVar[About] = About(
        contents="as many users and pictures as you like, 10 shapes in 8 fills", licence="none needed", where="drawn by code"
    )

    def load(self) -> Sources:
        if self.images < self.users:
            raise ValueError(f"data.source.images: {self.images:,} pictures for {self.users:,} users: each needs one at least")
        folder = self.cache / self._called() if self.cache is not None and self.pictures else None
        if folder is not None and all((folder / split / "examples.json").is_file() for split in SHARES):
            return Sources(**{split: Examples.open(folder / split) for split in SHARES})
        self._require_room(folder)
        world = World(self)
        columns = world.columns()
        splits, stop = {}, 0
        for split, users in zip(SHARES, np.rint(np.cumsum(list(SHARES.values())) * self.users).astype(int), strict=True):
            start, stop = stop, int(world.offsets[users])
            place = None if folder is None else folder / split
            drawn = world.pictures(start, stop, place) if self.pictures else {}
            examples = self._examples({**{name: values[start:stop] for name, values in columns.items()}, **drawn})
            splits[split] = examples if place is None else _kept(examples, drawn, place)
        return Sources(**splits)

    @property
    def class_names(self) -> tuple[str, ...]:
        return ("background", *SHAPES) if self.mask else SHAPES

    def _examples(self, columns: dict[str, NDArray[Any]]) -> Examples:
        mean, deviation, names = (0.48, 0.47, 0.47), (0.22, 0.22, 0.22), {"fine_labels": np.array(FINE)}
        return Examples(columns, "shapes", self.class_names, mean, deviation, names)

    def _require_room(self, folder: Path | None) -> None:
        needed = self.images * self.size**2 * (3 + self.mask)
        if folder is None:
            room, place = MOST_BYTES * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "in memory"
        else:
            folder.mkdir(parents=True, exist_ok=True)
            room, place = shutil.disk_usage(folder).free, f"in {folder}"
        if self.pictures and needed > room:
            raise ValueError(
                f"shapes: {needed / 1e9:,.0f} GB of pictures do not fit {place}; let data.source.cache name a folder with room for "
                "them, or set data.source.pictures=false if only the other columns are needed"
            )

    def _called(self) -> str:
        """A folder name that changes whenever the pictures do."""
        settings = self.model_dump_json(exclude={"cache"})
        return "shapes-" + blake2b(f"{VERSION} {settings}".encode(), digest_size=8).hexdigest()


class World:
    """What all users photograph, thought up in blocks of pictures: each again whenever it is asked for, from a key of its own."""

    def __init__(self, settings: Shapes):
        self.settings, users = settings, settings.users
        generator = random.generator(settings.seed, "shapes: users")
        weights = (1 - generator.random(users)) ** (-1 / (settings.exponent - 1))
        shares = np.cumsum(weights) / weights.sum()
        # one picture each, and the rest by weight: user k has the rows from offsets[k] to offsets[k + 1]
        self.offsets = np.arange(users + 1) + np.concatenate(([0], np.rint(shares * (settings.images - users)))).astype(np.int64)
        self.user = np.repeat(np.arange(users), np.diff(self.offsets))  # of each row
        self.taste = _preferences(generator, users, len(SHAPES), settings.concentration)
        self.fills = _preferences(generator, users, len(FILLS), 2 * settings.concentration)
        self.clutter = generator.uniform(0.1, 0.9, users).astype(np.float32)  # how many pictures have a second object
        self.tilt = generator.normal(0, 0.2, users).astype(np.float32)
        self.unsteady = generator.uniform(0.05, 0.3, users).astype(np.float32)

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns but pictures and masks, of all users' pictures."""
        rows, first = self.settings.images, int(self.settings.mask)  # class 0 may be the background
        classes = len(self.settings.class_names)
        columns: dict[str, NDArray[Any]] = {
            "client": self.user,
            "label": np.empty(rows, dtype=np.int64),
            "labels": np.zeros((rows, classes), dtype=np.uint8),
            "fine_labels": np.zeros((rows, len(FINE)), dtype=np.uint8),
            "boxes": np.zeros((rows, OBJECTS, 4), dtype=np.float32),
            "box_label": np.empty((rows, OBJECTS), dtype=np.int64),
        }
        for start in range(0, rows, BLOCK):
            things, part = self.things(start // BLOCK), slice(start, start + BLOCK)
            row, place = np.nonzero(things.shape >= 0)
            shape, fill = things.shape[row, place], things.fill[row, place]
            columns["label"][part] = things.shape[:, 0] + first
            columns["labels"][start + row, shape + first] = 1
            columns["fine_labels"][start + row, shape * len(FILLS) + fill] = 1
            columns["box_label"][part] = np.where(things.shape >= 0, things.shape + first, -1)
            boxes = extents(shape, things.centre[row, place], things.radius[row, place], things.angle[row, place])
            columns["boxes"][start + row, place] = boxes * np.float32(self.settings.size)
        return columns

    def pictures(self, start: int, stop: int, folder: Path | None) -> dict[str, NDArray[np.uint8]]:
        """Draw some rows' pictures, and masks if they are wanted, in memory or into files of a folder."""
        square = (stop - start, self.settings.size, self.settings.size)
        shapes = {"image": (*square, 3)} | ({"mask": square} if self.settings.mask else {})
        drawn: dict[str, NDArray[np.uint8]] = {}
        for name, extent in shapes.items():
            if folder is None:
                drawn[name] = np.zeros(extent, dtype=np.uint8)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                drawn[name] = open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=extent)
        looks = Looks.of(self.settings)
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
            scenes = looks.scenes(self.things(block), block).rows(first - block * BLOCK, last - block * BLOCK)
            part = slice(first - start, last - start)
            draw(scenes, self.settings.size, drawn["image"][part], drawn["mask"][part] if "mask" in drawn else None)
        return drawn

    def things(self, block: int) -> Things:
        """What the pictures of a block show.

        The first object is the largest, near a corner if it has company; the second lies in the corner across, the third in
        one beside: so that none covers another.
        """
        start, stop = block * BLOCK, min((block + 1) * BLOCK, self.settings.images)
        count, generator = stop - start, random.generator(self.settings.seed, "shapes: things", block)
        user = self.user[start:stop]
        chance, clutter = generator.random(count, dtype=np.float32), self.clutter[user]
        objects = 1 + (chance < clutter).astype(int) + (chance < 0.4 * clutter)
        shape = _chosen(self.taste, len(SHAPES), user, generator)
        shape[np.arange(OBJECTS) >= objects[:, None]] = -1
        alone = (objects == 1)[:, None]
        side = 2 * generator.integers(0, 2, (count, 2)).astype(np.float32) - 1
        other = side * (1 - 2 * np.eye(2, dtype=np.float32))[generator.integers(0, 2, count)]
        centre = generator.random((count, OBJECTS, 2), dtype=np.float32) - np.float32(0.5)
        centre[:, 0] *= np.where(alone, np.float32(0.2), np.float32(0.03))
        centre[:, 0] -= np.where(alone, 0, np.float32(0.13) * side)
        centre[:, 1:] *= np.float32(0.03)
        centre[:, 1:] += np.float32(0.31) * np.stack([side, other], axis=1)
        radius = np.float32(0.12) + np.float32(0.04) * generator.random((count, OBJECTS), dtype=np.float32)
        radius[:, 0] = np.float32(0.2) + np.where(alone[:, 0], np.float32(3.5), np.float32(1.75)) * (
            radius[:, 0] - np.float32(0.12)
        )
        angle = self.tilt[user, None] + self.unsteady[user, None] * generator.standard_normal((count, 1), dtype=np.float32)
        angle = angle + np.float32(0.1) * generator.standard_normal((count, OBJECTS), dtype=np.float32)
        return Things(user, shape, _chosen(self.fills, len(FILLS), user, generator), centre + np.float32(0.5), radius, angle)


@dataclass(frozen=True)
class Things:
    """The objects of n pictures, up to J in each; lengths in widths of the picture."""

    user: NDArray[np.int64]  # [n]
    shape: NDArray[np.int64]  # [n, J], −1 where there is none
    fill: NDArray[np.int64]  # [n, J]
    centre: Floats  # [n, J, 2]
    radius: Floats  # [n, J]
    angle: Floats  # [n, J]


@dataclass(frozen=True)
class Looks:
    """How each user's pictures look: the ground that things lie on, and the camera."""

    seed: int
    size: int
    ground: Floats  # [users, 2, 3], colours
    texture: NDArray[np.int64]  # [users], of GROUNDS
    frequency: Floats  # [users], of the texture, in waves to a width
    direction: Floats  # [users]
    gain: Floats  # [users, 3], of the camera: its brightness and tint
    softness: Floats  # [users]
    noise: Floats  # [users], in grey levels

    @classmethod
    def of(cls, settings: Shapes) -> Looks:
        users, generator = settings.users, random.generator(settings.seed, "shapes: looks")
        grey = generator.uniform(60, 200, (users, 1, 1))
        apart = generator.uniform(25, 60, (users, 1, 1)) * [[1], [-1]] * generator.choice([-1, 1], (users, 1, 1))
        gain = np.exp(generator.normal(0, 0.25, (users, 1)).clip(-0.6, 0.4)) * generator.uniform(0.88, 1.12, (users, 3))
        texture = generator.integers(0, len(GROUNDS), users)
        frequency = generator.uniform(1.5, 5, users) * np.where(texture == SHADED, 0.15, 1)
        drawn = {
            "ground": grey + apart / 2 + generator.uniform(-22, 22, (users, 2, 3)),
            "frequency": frequency,
            "direction": generator.uniform(0, np.pi, users),
            "gain": gain,
            "softness": 1 / settings.size + generator.uniform(0, 0.05, users) ** 1.5 * 4,
            "noise": generator.uniform(0, 12, users),
        }
        return cls(settings.seed, settings.size, texture=texture, **{name: a.astype(np.float32) for name, a in drawn.items()})

    def scenes(self, things: Things, block: int) -> Scenes:
        """Things as their users see them."""
        user, count = things.user, len(things.user)
        generator = random.generator(self.seed, "shapes: pictures", block)
        paint = np.array(list(COLOURS.values()), dtype=np.float32)[things.fill % len(COLOURS)]
        paint += generator.uniform(-12, 12, paint.shape).astype(np.float32)
        light = self.gain[user] * generator.uniform(0.9, 1.1, (count, 1)).astype(np.float32)
        ground, things_paint = (np.rint(colour * light[:, None]).clip(0, 255) for colour in (self.ground[user], paint))
        noise = np.repeat(noise_weight(self.noise[user])[:, None, None], 3, axis=2)
        colours = np.concatenate([ground, noise, things_paint], axis=1)
        across, down = (self.frequency[user] * turned(self.direction[user]) for turned in (np.cos, np.sin))
        shift = generator.random((2, count), dtype=np.float32)
        waves = np.stack([np.stack([across, down, shift[0]], -1), np.stack([-down, across, shift[1]], -1)], axis=1)
        place = generator.integers(0, NOISE, count)
        striped = things.fill >= len(COLOURS)
        shown = things.shape, things.centre, things.radius, things.angle, striped
        return Scenes(*shown, colours, waves, GROUNDS[self.texture[user]], self.softness[user], place)


def _preferences(generator: np.random.Generator, users: int, kinds: int, concentration: float) -> NDArray[np.float64]:
    """Each user's shares of the kinds, drawn from a Dirichlet distribution, as one rising sequence: user k's end with k + 1."""
    shares = generator.standard_gamma(concentration / kinds, (kinds, users), dtype=np.float32)
    nothing = np.flatnonzero(~shares.any(axis=0))  # every draw underflowed: the limit is a single kind
    shares[generator.integers(0, kinds, len(nothing)), nothing] = 1
    ends = np.cumsum(shares, axis=0, dtype=np.float64)
    ends /= ends[-1]
    ends += np.arange(users)
    return ends.T.ravel()


def _chosen(
    preferences: NDArray[np.float64], kinds: int, user: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """A kind for each object [n, J] by the preferences of the picture's user."""
    wanted = user[:, None] + generator.random((len(user), OBJECTS))
    return np.searchsorted(preferences, wanted, side="right") - user[:, None] * kinds


def _kept(examples: Examples, drawn: dict[str, NDArray[Any]], folder: Path) -> Examples:
    """Write the columns beside the pictures that were drawn into the folder, and map all of it."""
    for name, values in examples.columns.items():
        if name not in drawn:
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
    examples.save_facts(folder)
    return Examples.open(folder)
