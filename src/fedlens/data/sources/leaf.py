"""The image data sets of LEAF (Caldas et al. 2018), from the JSON files that its scripts write.

{"users": [name, …], "num_samples": [n, …], "user_data": {name: {"x": [n pictures], "y": [n classes]}, …}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.pictures import Fit
from fedlens.data.sources.base import SOURCES, About, Files, PictureFiles, Sources
from fedlens.data.sources.celeba import class_names
from fedlens.data.sources.characters import CHARACTERS, Columns, Ink, character_examples, inked
from fedlens.data.sources.checks import folder_with

Pairs: TypeAlias = list[tuple[str, Any]]
User: TypeAlias = tuple[NDArray[Any], NDArray[np.int64]]  # pictures and classes
Compact: TypeAlias = Callable[[Any], NDArray[Any]]

PICTURES = "raw/img_align_celeba"
PAPER = "Caldas et al. 2018, LEAF: A Benchmark for Federated Settings"
HOW = "run LEAF's data/{name}/preprocess.sh, and give the folder data/{name}/data that it fills"


@SOURCES.register("leaf_femnist", paper=PAPER)
class LEAFFEMNIST(Files):
    """Federated EMNIST as LEAF makes it: the characters of each writer, from PATH/femnist/data, or that folder itself.

    There, train/*.json and test/*.json are the splits, by users or by samples as LEAF was asked to; all_data/*.json, if they are
    not split yet, become training data. Ink is dark on white paper, as LEAF and TensorFlow Federated have it; ink=bright gives the
    negative, as MNIST and EMNIST are. How many there are depends on what LEAF was told to sample, so that no count is checked.
    """

    ink: Ink = "dark"

    about: ClassVar[About] = About(
        contents="in full 805,263 pictures of 28 × 28, 3,550 clients, 62 classes",
        licence="public domain (NIST Special Database 19); LEAF's scripts BSD 2-clause",
        where="https://github.com/TalwalkarLab/leaf, data/femnist/preprocess.sh",
        gigabytes=4.5,
        files=("train/*.json | all_data/*.json",),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return _holds_data(_folders(folder, "femnist")["train"])

    def load(self) -> Sources:
        splits = {split: _joined(files, _pixels) for split, files in _splits(self.path, "femnist").items()}
        train = character_examples("LEAF FEMNIST", self._columns(splits["train"]), CHARACTERS, None)
        if "test" not in splits:
            return Sources(train)
        return Sources(train, test=character_examples("LEAF FEMNIST", self._columns(splits["test"]), CHARACTERS, train))

    def _columns(self, found: Columns) -> Columns:
        return {"image": inked(found["x"], self.ink), "label": found["y"], "client": found["client"]}


@SOURCES.register("leaf_celeba", paper=PAPER)
class LEAFCelebA(PictureFiles):
    """CelebA as LEAF divides it: who smiles on the portraits of each celebrity, from PATH/celeba/data, or that folder itself.

    There, train/*.json and test/*.json (or all_data/*.json, if they are not split) name pictures of raw/img_align_celeba. As in
    LEAF's own model, they become 84 × 84 by distortion.
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 84
    fit: Fit = "stretch"

    about: ClassVar[About] = About(
        contents="200,288 portraits, 9,343 clients, 2 classes",
        licence="non-commercial research only (CelebA's agreement)",
        where="https://github.com/TalwalkarLab/leaf, data/celeba/preprocess.sh",
        gigabytes=1.4,
        files=("train/*.json | all_data/*.json", "raw/img_align_celeba"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        train = _folders(folder, "celeba")["train"]
        return _holds_data(train) and (train.parent / PICTURES).is_dir()

    def listings(self) -> Mapping[str, Listing]:
        splits = _splits(self.path, "celeba")
        folder = splits["train"][0].parent.parent / PICTURES
        listings = {}
        for split, files in splits.items():
            found = _joined(files, _names)
            names = found["x"].tolist()
            columns = {"label": found["y"], "client": found["client"]}
            listings[split] = Listing([folder / name for name in names], columns, "LEAF CelebA", class_names("Smiling"), keys=names)
            if len(wrong := np.flatnonzero((found["y"] < 0) | (found["y"] > 1))):
                raise ValueError(f"{files[0].parent}: {names[wrong[0]]} has class {found['y'][wrong[0]]}; there are 0 and 1")
        return listings


def _folders(path: Path, name: str) -> dict[str, Path]:
    """Where the files of each split are, or belong."""
    places = f"{name}/data", f"data/{name}/data", name, "data"
    folder = folder_with("train/*.json", path, *places)
    if (folder / "train").is_dir():
        return {"train": folder / "train", "test": folder / "test"}
    return {"train": folder_with("all_data/*.json", path, *places) / "all_data"}


def _holds_data(folder: Path) -> bool:
    """Whether there are files as LEAF calls them, which others that lie in a folder `train` are not."""
    return next(folder.glob("all_data*.json"), None) is not None


def _splits(path: Path, name: str) -> dict[str, list[Path]]:
    """The files of each split, in the order of the numbers in their names."""
    splits = _folders(path, name)
    files = {split: sorted(place.glob("*.json"), key=lambda file: (len(file.name), file.name)) for split, place in splits.items()}
    if lacking := [split for split in splits if not files[split]]:
        raise FileNotFoundError(f"data.source.path: there is no *.json in {splits[lacking[0]]} ({HOW.format(name=name)})")
    return files


def _joined(files: list[Path], compact: Compact) -> Columns:
    """All examples in some files and the `client` of each. Users without any, as LEAF's splits by samples leave, are no clients."""
    pictures, classes, clients = [], [], dict[str, int]()
    for file in files:
        for user, (x, y) in _users(file, compact):
            if user in clients:
                raise ValueError(f"{file}: user {user} stands in another place too; each should stand in one")
            if len(y):
                clients[user] = len(y)
                pictures.append(x)
                classes.append(y)
    if not clients:
        raise ValueError(f"{files[0].parent}: the files hold no examples")
    client = np.repeat(np.array(list(clients), dtype=np.str_), list(clients.values()))
    return {"x": np.concatenate(pictures), "y": np.concatenate(classes), "client": client}


def _users(file: Path, compact: Compact) -> Iterator[tuple[str, User]]:
    """The users in a file. What stands of each is made compact as soon as it is read: numbers in JSON take 30 times the room."""

    def read(pairs: Pairs) -> dict[str, Any] | User | Exception:
        found = dict(pairs)
        if not {"x", "y"} <= found.keys() or "users" in found:
            return found
        try:
            user = compact(found["x"]) if found["x"] else np.empty(0), np.array(found["y"], dtype=np.int64).reshape(-1)
            return user if len(user[0]) == len(user[1]) else ValueError(f"{len(user[0])} pictures and {len(user[1])} classes")
        except (ValueError, TypeError, OverflowError) as error:
            return error

    try:
        content = json.loads(file.read_bytes(), object_pairs_hook=read)
        users, sizes, data = (content[key] for key in ("users", "num_samples", "user_data"))
        listed = list(zip(users, sizes, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no file of LEAF's ({type(error).__name__}: {error}); truncated?") from error
    for user, size in listed:
        found = data.get(user)
        if not isinstance(found, tuple):
            raise ValueError(f"{file}, user {user}: {found or 'no examples'}") from found if isinstance(found, Exception) else None
        if len(found[1]) != size:
            raise ValueError(f"{file}, user {user}: {len(found[1])} examples, not {size} as num_samples says")
        yield user, found


def _pixels(x: Any) -> NDArray[np.uint8]:
    """Pictures [n, 28, 28, 1] from lists of 784 shares of white."""
    shares = np.array(x, dtype=np.float32)
    if shares.shape[1:] != (784,):
        raise ValueError(f"pictures of shape {shares.shape[1:]}, not (784,)")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("a pixel that does not lie in 0…1")
    return np.rint(shares * 255).astype(np.uint8).reshape(-1, 28, 28, 1)


def _names(x: Any) -> NDArray[np.str_]:
    if not all(isinstance(name, str) for name in x):
        raise ValueError("pictures that are not names of files")
    return np.array(x, dtype=np.str_)
