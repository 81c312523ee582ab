"""Google Landmarks v2 with the published clients, and drawn anew from its metadata."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedlens.data import Examples, Natural
from fedlens.data.prepare import Shape, prepare
from fedlens.data.sources import landmarks
from fedlens.data.sources.landmarks import Holdings, Landmarks, LandmarksRaw

IDS = [f"{number * 0x1234567890ABCDE:016x}" for number in range(1, 9)]
CLASS = [1, 0, 0, 1, 2, 2, 0, 1]  # the last two are the test
USER = [10, 2, 2, 10, 0, 10]
LANDMARK = [27, 190_012, 5]  # of each class
NAMES = {
    "user_160k": ("federated_train.csv", "test.csv"),
    "23k": ("mini_gld_train_split.csv", "mini_gld_test.csv"),
}


def texts() -> tuple[str, str]:
    train = "user_id,image_id,class\n" + "".join(f"{USER[row]},{IDS[row]},{CLASS[row]}\n" for row in range(6))
    return train, "image_id,class\n" + "".join(f"{IDS[row]},{CLASS[row]}\n" for row in (6, 7))


def write_tables(folder: Path, split: str = "user_160k") -> None:
    for name, text in zip(NAMES[split], texts(), strict=True):
        (folder / name).write_text(text)


def write_pictures(folder: Path, flat: bool, top: str = "") -> None:
    for row, one in enumerate(IDS):
        path = folder / "images" / f"{one}.jpg" if flat else Path(folder, top, *one[:3], f"{one}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("CMYK" if row == 2 else "RGB", (10, 20)).save(path)


def source(folder: Path, **settings) -> Landmarks:
    return Landmarks(path=folder, size=8, **{"expect": "any", **settings})


def ids(examples: Examples) -> list[str]:
    return examples.categories["image_id"][examples.column("image_id")].tolist()


def clients_of(examples: Examples) -> dict[str, list[str]]:
    clients, of_row = Natural().assign(examples, 0), ids(examples)
    return {clients.client_name(k): sorted(of_row[row] for row in clients.of_client(k)) for k in range(len(clients))}


@pytest.mark.parametrize(("flat", "top"), [(True, ""), (False, ""), (False, "train"), (False, "images")])
@pytest.mark.parametrize("split", NAMES)
def test_the_published_photographers_are_the_clients(tmp_path, split, flat, top):
    write_tables(tmp_path, split)
    write_pictures(tmp_path, flat, top)
    sources = source(tmp_path, split=split).load()
    assert clients_of(sources.train) == {"0": [IDS[4]], "2": sorted([IDS[1], IDS[2]]), "10": sorted([IDS[0], IDS[3], IDS[5]])}
    assert list(clients_of(sources.train)) == ["0", "2", "10"]
    assert dict(zip(ids(sources.train), sources.train.column("label").tolist(), strict=True)) == dict(
        zip(IDS[:6], CLASS, strict=False)
    )
    assert (sources.test.column("label").tolist(), ids(sources.test)) == (CLASS[6:], IDS[6:])
    assert sources.train.class_names == ("0", "1", "2")
    assert sources.train.column("image").shape == (6, 8, 8, 3)


def test_some_pictures_may_lie_flat_and_others_in_folders(tmp_path):
    write_tables(tmp_path)
    write_pictures(tmp_path, flat=False)
    (tmp_path / "images").mkdir()
    moved = Path(*IDS[3][:3], f"{IDS[3]}.jpg")
    (tmp_path / moved).rename(tmp_path / "images" / moved.name)
    assert all(path.is_file() for listing in source(tmp_path).listings().values() for path in listing.pictures)


@pytest.mark.parametrize(
    ("archive", "prefix", "split", "names"),
    [
        ("landmarks-user-160k.zip", "landmarks-user-160k/", "user_160k", NAMES["user_160k"]),
        ("landmarks-user-160k.zip", "", "user_160k", NAMES["user_160k"]),
        ("data_user_dict.zip", "data_user_dict/", "user_160k", ("gld160k_user_dict_train.csv", "gld160k_user_dict_test.csv")),
        ("data_user_dict.zip", "data_user_dict/", "23k", ("gld23k_user_dict_train.csv", "gld23k_user_dict_test.csv")),
    ],
)
def test_the_published_zips_are_read_as_they_are(tmp_path, archive, prefix, split, names):
    write_pictures(tmp_path, flat=True)
    with zipfile.ZipFile(tmp_path / archive, "w") as file:
        for name, text in zip(names, texts(), strict=True):
            file.writestr(prefix + name, text)
    assert len(source(tmp_path, split=split).listings()["train"]) == 6


def write_names(folder: Path, clean: bool) -> None:
    of_id = {one: LANDMARK[c] for one, c in zip(IDS, CLASS, strict=True)} | {"f" * 16: 8}
    if clean:
        lines = [f"{number},{' '.join(one for one in of_id if of_id[one] == number)}" for number in {*of_id.values()}]
        (folder / "train_clean.csv").write_text("\n".join(["landmark_id,images", *lines]))
    else:
        (folder / "train.csv").write_text("\n".join(["id,url,landmark_id", *(f"{one},http://x,{of_id[one]}" for one in of_id)]))
    pages = {27: "Category:Eiffel_Tower", 190_012: "Category:Caf%C3%A9_%22A,_B%22", 8: "Category:Other"}
    lines = [f'{number},"http://commons.wikimedia.org/wiki/{page}"' for number, page in pages.items()]
    (folder / "train_label_to_category.csv").write_text("\n".join(["landmark_id,category", *lines]))


@pytest.mark.parametrize("clean", [True, False])
def test_landmarks_are_named_by_the_metadata(tmp_path, clean):
    write_tables(tmp_path)
    write_pictures(tmp_path, flat=True)
    write_names(tmp_path, clean)
    assert source(tmp_path).listings()["train"].class_names == ("Eiffel Tower", 'Café "A, B"', "5")  # of the last there is no page


def test_a_class_that_is_two_landmarks_is_an_error(tmp_path, monkeypatch):
    write_tables(tmp_path)
    write_pictures(tmp_path, flat=True)
    monkeypatch.setitem(globals(), "CLASS", [2, *CLASS[1:]])
    write_names(tmp_path, clean=True)
    with pytest.raises(ValueError, match=r"train_clean.csv: class 1 is both '190012' and '5'"):
        source(tmp_path).listings()


@pytest.mark.parametrize("flat", [True, False])
def test_missing_pictures_are_counted_for_each_client(tmp_path, flat):
    write_tables(tmp_path)
    write_pictures(tmp_path, flat)
    for row in (0, 3, 4):
        next(tmp_path.rglob(f"{IDS[row]}.jpg")).unlink()
    with pytest.raises(
        ValueError, match=rf"3 of 6 pictures cannot be used: 3 missing.*2 clients lack some \(10: 2, 0: 1\)(.|\n)*{IDS[4]}"
    ):
        source(tmp_path).load()
    bad = prepare(source(tmp_path).listings()["train"], tmp_path / "packed", Shape(8), "skip", 1, lambda done: None)
    assert bad.clients == {"10": 2, "0": 1}
    assert clients_of(Examples.open(tmp_path / "packed")) == {"2": sorted(IDS[1:3]), "10": [IDS[5]]}


def test_files_that_are_missing_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"neither federated_train.csv nor gld160k_user_dict_train.csv is under .*landmarks_raw"
    ):
        source(tmp_path).listings()
    write_tables(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"neither {tmp_path}/images nor folders 0 … f with pictures are in {tmp_path}"):
        source(tmp_path).listings()
    (tmp_path / "test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"test.csv is missing beside .*federated_train.csv"):
        source(tmp_path).listings()


def test_files_with_published_digests_are_compared(tmp_path):
    write_tables(tmp_path, "23k")
    with pytest.raises(ValueError, match=r"mini_gld_train_split.csv is not the published file: .*9fd62cf79a67046fdd673d3a0ac52841"):
        source(tmp_path, split="23k", expect="official").listings()


def write_official(folder: Path, landmark_of) -> None:
    (folder / "images").mkdir(exist_ok=True)
    rows = [f"{row % 1262},{row:016x},{landmark_of(row)}" for row in range(164_172)]
    (folder / "federated_train.csv").write_text("\n".join(["user_id,image_id,class", *rows]))
    tested = [f"{row + 10**9:016x},{row % 2028}" for row in range(19_526)]
    (folder / "test.csv").write_text("\n".join(["image_id,class", *tested]))


def test_the_official_counts_and_properties_are_asked_for(tmp_path):
    write_official(tmp_path, lambda row: row % 2028)
    listings = source(tmp_path, expect="official").listings()
    assert {split: len(listing) for split, listing in listings.items()} == {"train": 164_172, "test": 19_526}
    write_official(tmp_path, lambda row: 3 if row % 1262 == 7 else row % 2028)
    with pytest.raises(ValueError, match=r"a photographer has 1 landmarks, not 5 at least \(data.source.expect=any"):
        source(tmp_path, expect="official").listings()
    write_official(tmp_path, lambda row: row % 2027)
    (tmp_path / "test.csv").write_text("image_id,class\nx,0\n")
    message = r"user_160k: 2,027 classes instead of 2,028, 1 test images instead of 19,526; .*expect=any"
    with pytest.raises(ValueError, match=message):
        source(tmp_path, expect="official").listings()


# ----- drawn anew


@pytest.fixture
def small(monkeypatch) -> None:
    """Rules that a handful of images can satisfy."""
    for name, value in {"IMAGES": 3, "USERS": 2, "LANDMARKS": 2, "TESTED": 2}.items():
        monkeypatch.setattr(landmarks, name, value)


def one_by_one(pairs: list[tuple[int, int]], generator: np.random.Generator) -> set[tuple[int, int]]:
    """The same set, by dropping any one landmark or user that has too little, until there is none."""
    left = list(enumerate(pairs))
    while True:
        wrong = []
        for side, least_others in ((0, landmarks.USERS), (1, landmarks.LANDMARKS)):
            for who in {pair[side] for _, pair in left}:
                own = [pair for _, pair in left if pair[side] == who]
                if len(own) < landmarks.IMAGES or len({pair[1 - side] for pair in own}) < least_others:
                    wrong.append((side, who))
        if not wrong:
            return {number for number, _ in left}
        side, who = sorted(wrong)[generator.integers(len(wrong))]
        left = [(number, pair) for number, pair in left if pair[side] != who]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_the_filters_leave_the_largest_set_that_satisfies_them_whatever_the_order(pairs, seed):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"IMAGES": 3, "USERS": 2, "LANDMARKS": 2}.items():
            patch.setattr(landmarks, name, value)
        landmark, author = np.array(pairs).T
        kept_landmark, kept_author = Holdings.of(landmark, author).filtered()
        kept = kept_landmark[landmark] & kept_author[author]
        assert set(np.flatnonzero(kept)) == one_by_one(pairs, np.random.default_rng(seed))
        assert not Holdings.of(landmark[kept], author[kept]).broken()


def write_raw(folder: Path, photographs: dict[str, list[tuple[int, str | None]]]) -> None:
    """train_clean.csv and train_attribution.csv of (id, landmark, author); None: the image is not in the latter."""
    of_landmark: dict[int, list[str]] = {}
    for one, (number, _) in photographs.items():
        of_landmark.setdefault(number, []).append(one)
    lines = [f"{number},{' '.join(own)}" for number, own in of_landmark.items()]
    (folder / "train_clean.csv").write_text("\n".join(["landmark_id,images", *lines]))
    with (folder / "train_attribution.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "url", "author", "license", "title"])
        writer.writerow(["f" * 16, "http://x", "Somebody", "CC BY", "not clean"])
        for one, (_, author) in photographs.items():
            if author is not None:
                writer.writerow([one, "http://x", author, "CC BY", 'A "tower", seen from afar'])
    (folder / "images").mkdir(exist_ok=True)


def photographs() -> dict[str, tuple[int, str | None]]:
    """Landmarks 30 and 40 that stay; 50 falls when the user who has too few landmarks does, and with it another user."""
    rows: list[tuple[int, str | None]] = []
    for who in ("Lee, Ann", "Zoe\u0308 "):  # of these, the second is written in another way than below
        rows += [(30, who)] * 2 + [(40, who)] * 2
    rows += [(30, "Zo\u00eb"), (30, " Lee, Ann")]
    rows += [(50, "One landmark")] * 3  # has a single landmark
    rows += [(50, "Falls later")] * 2 + [(40, "Falls later")]  # 50 had two users, now it has one
    rows += [(30, "Guest")] * 1 + [(40, "Guest")] * 1 + [(30, "Passer-by")] * 2  # too few images: tests
    rows += [(30, ""), (30, "  "), (40, None)] * 4  # nobody knows who
    return {f"{(7 * number) % 97:016x}": row for number, row in enumerate(rows)}


def drawn(folder: Path, **settings) -> dict[str, Examples]:
    with pytest.warns(
        UserWarning, match=r"drew \d+ clients, .*; published were 1,262 clients, 2,028 classes, 164,172 training images"
    ):
        return {split: listing.examples({}) for split, listing in LandmarksRaw(path=folder, **settings).listings().items()}


@pytest.mark.usefixtures("small")
def test_landmarks_and_photographers_with_too_little_are_dropped_until_none_is_left(tmp_path):
    rows = photographs()
    write_raw(tmp_path, rows)
    parts = drawn(tmp_path)
    train, test = parts["train"], parts["test"]
    assert {name: len(own) for name, own in clients_of(train).items()} == {"Lee, Ann": 5, "Zo\u00eb": 5}
    assert train.class_names == ("30", "40")
    assert [rows[one][0] for one in ids(train)] == [int(train.class_names[c]) for c in train.column("label")]
    assert np.bincount(test.column("label")).tolist() == [2, 2]  # of 3 images and of 2, at most 2
    others = {"Guest", "Passer-by", "Falls later", "One landmark"}
    assert {rows[one][1] for one in ids(test)} <= others
    assert "client" not in test.columns


@pytest.mark.usefixtures("small")
def test_passes_can_be_limited_and_it_is_said_what_does_not_hold_then(tmp_path):
    write_raw(tmp_path, photographs())
    with pytest.warns(
        UserWarning, match=r"max_passes=1: a landmark has 2 images, not 3 at least, a landmark has 1 photographers, not 2"
    ):
        train = drawn(tmp_path, max_passes=1)["train"]
    assert "Falls later" in clients_of(train)


@pytest.mark.usefixtures("small")
def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    rows = photographs()
    write_raw(tmp_path, rows)
    tests = {tuple(ids(drawn(tmp_path, seed=seed)["test"])) for seed in range(6)}
    assert len(tests) > 1
    first = drawn(tmp_path)
    write_raw(tmp_path, dict(reversed(rows.items())))
    second = drawn(tmp_path)
    assert (ids(first["test"]), ids(first["train"])) == (ids(second["test"]), ids(second["train"]))


@pytest.mark.usefixtures("small")
def test_metadata_that_are_wrong_or_missing_are_named(tmp_path):
    write_raw(tmp_path, photographs())
    clean = tmp_path / "train_clean.csv"
    good = clean.read_text()
    clean.write_text(f"{good}\n60,{good.split()[-1]} abc")
    with pytest.raises(ValueError, match=r"train_clean.csv: 'images' \w{16} stands in 2 rows"):
        LandmarksRaw(path=tmp_path).listings()
    clean.write_text(good.replace("30,", "thirty,"))
    with pytest.raises(ValueError, match=r"train_clean.csv, row 1: 'landmark_id' should be a whole number; it is 'thirty'"):
        LandmarksRaw(path=tmp_path).listings()
    clean.write_text("landmark_id,images\n3,abc\n")
    with pytest.raises(ValueError, match=r"no landmark under .* has enough images and photographers"):
        LandmarksRaw(path=tmp_path).listings()
    (tmp_path / "train_attribution.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"data\.source\.path: train_attribution.csv is missing under"):
        LandmarksRaw(path=tmp_path).listings()


@pytest.mark.parametrize("place", ["", "tables", "deep/down"])
@pytest.mark.parametrize("flat", [True, False])
def test_the_files_are_there_where_they_are_read(tmp_path, place, flat):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    write_tables(tmp_path / place)
    assert not Landmarks.is_in(tmp_path)  # there are no pictures
    write_pictures(tmp_path, flat)
    assert Landmarks.is_in(tmp_path)
    assert source(tmp_path).listings()
    assert not LandmarksRaw.is_in(tmp_path)
    assert not Landmarks.is_in(tmp_path / "nowhere")


def test_pictures_are_not_walked_through_for_tables(tmp_path):
    for folder in ("images/user", "a/user"):
        (tmp_path / folder).mkdir(parents=True)
        write_tables(tmp_path / folder)
    assert not Landmarks.is_in(tmp_path)
