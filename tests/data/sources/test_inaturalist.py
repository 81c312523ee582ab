"""iNaturalist 2017 with the published clients, and drawn anew from its metadata."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlens.data import Examples, Natural
from fedlens.data.partitions.geographic import Geographic
from fedlens.data.prepare import Shape, prepare
from fedlens.data.sources.inaturalist import INaturalist, INaturalistRaw

SPECIES = ("Aves/Parus major", "Plantae/Bellis perennis", "Aves/Pica pica")
STEMS = [f"{number:032x}" for number in range(9)]
CLASS = [2, 0, 1, 1, 0, 2, 0, 1, 2]
USER = [10, 2, 10, 2, 2, 33, 2]  # of the first seven; the others are the test
GEO = ["80c", "NA", "80c", "2ec", "NA", "4877", "2ec"]
LABEL = [4123, 17, 250]  # of each class: the numbers of the JSON


def picture(folder: Path, row: int) -> None:
    path = folder / "train_val_images" / SPECIES[CLASS[row]] / f"{STEMS[row]}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if row == 1 else "RGB", (20, 10), 20 * row).save(path, quality=95)  # some of the official ones are grey


def train_csv(users: list, labels: list = LABEL) -> str:
    rows = [f"{user},{STEMS[row]},{CLASS[row]},{labels[CLASS[row]]}\n" for row, user in reversed(list(enumerate(users)))]
    return "user_id,image_id,class,label\n" + "".join(rows)


def csv_of_test(labels: list = LABEL) -> str:
    return "image_id,class,label\n" + "".join(f"{STEMS[row]},{CLASS[row]},{labels[CLASS[row]]}\n" for row in (7, 8))


def bundle(path: Path, name: str, train: str, test: str, top: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{top}{name}", train)
        archive.writestr(f"{top}test.csv", test)


@pytest.fixture
def folder(tmp_path) -> Path:
    for row in range(len(STEMS)):
        picture(tmp_path, row)
    return tmp_path


def write_tff(folder: Path) -> None:
    columns = ["geo_3k", "image_id", "user_120k", "class"]
    rows = [f"{GEO[row]},{STEMS[row]},{USER[row]},{CLASS[row]}" for row in range(7)]
    (folder / "iNaturalist_train.csv").write_text("\n".join([",".join(columns), *rows]))
    (folder / "iNaturalist_test.csv").write_text(csv_of_test())


def source(folder: Path, **settings) -> INaturalist:
    return INaturalist(path=folder, size=8, fit="stretch", **{"expect": "any", **settings})


def ids(examples: Examples) -> list[str]:
    return examples.categories["image_id"][examples.column("image_id")].tolist()


def clients_of(examples: Examples, partition) -> dict[str, list[str]]:
    clients, stems = partition.assign(examples, 0), ids(examples)
    return {clients.client_name(k): sorted(stems[row] for row in clients.of_client(k)) for k in range(len(clients))}


@pytest.mark.parametrize("top", ["", "inaturalist-user-120k/"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_the_published_photographers_are_the_clients(folder, top, unpacked):
    path = folder / "inaturalist-user-120k.zip"
    bundle(path, "federated_train_user_120k.csv", train_csv(USER), csv_of_test(), top)
    if unpacked:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        path.unlink()
    sources = source(folder).load()
    assert ids(sources.train) == [STEMS[row] for row in (1, 3, 4, 6, 0, 2, 5)]  # by client, then by picture
    assert sources.train.column("label").tolist() == [CLASS[row] for row in (1, 3, 4, 6, 0, 2, 5)]
    assert clients_of(sources.train, Natural()) == {
        "2": [STEMS[row] for row in (1, 3, 4, 6)],
        "10": [STEMS[0], STEMS[2]],
        "33": [STEMS[5]],
    }
    assert list(clients_of(sources.train, Natural())) == ["2", "10", "33"]  # as numbers sort
    assert sources.train.class_names == ("Parus major", "Bellis perennis", "Pica pica")
    np.testing.assert_allclose(sources.train.column("image")[:, 4, 4, 0], [20 * row for row in (1, 3, 4, 6, 0, 2, 5)], atol=3)
    assert ids(sources.test) == STEMS[7:]
    np.testing.assert_allclose(sources.test.column("image")[:, 4, 4, 0], [140, 160], atol=3)
    assert sources.test.column("label").tolist() == CLASS[7:]
    assert "client" not in sources.test.columns


def test_places_are_clients_of_the_geographic_splits_and_what_lies_nowhere_is_left_out(folder):
    expected = {"2ec": [STEMS[3], STEMS[6]], "4877": [STEMS[5]], "80c": [STEMS[0], STEMS[2]]}
    write_tff(folder)
    assert clients_of(source(folder, split="geo_3k").load().train, Natural()) == expected
    bundle(
        folder / "inaturalist-geo.zip",
        "federated_train_geo_3k.csv",
        train_csv(["here" if at != "NA" else at for at in GEO]),
        csv_of_test(),
    )
    assert list(clients_of(source(folder, split="geo_3k").load().train, Natural())) == ["here"]  # the split's own table comes first
    assert list(clients_of(source(folder).load().train, Natural())) == ["2", "10", "33"]


def test_a_split_that_the_tables_do_not_have_is_named(folder):
    with pytest.raises(
        FileNotFoundError, match=r"no federated_train\*user\*120k.csv of inaturalist-user-120k.zip.*inaturalist_raw"
    ):
        source(folder).listings()
    write_tff(folder)
    with pytest.raises(ValueError, match=r"iNaturalist_train.csv has no column 'geo_30k'.*geo_3k, image_id, user_120k, class"):
        source(folder, split="geo_30k").listings()
    (folder / "iNaturalist_test.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"data\.source\.path: iNaturalist_test.csv is missing beside .*iNaturalist_train.csv"
    ):
        source(folder).listings()


def test_the_pictures_have_to_be_there(tmp_path):
    write_tff(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {tmp_path}/train_val_images is missing \(unpack train_val"):
        source(tmp_path).listings()


def test_classes_are_called_as_the_table_says_if_it_does(folder):
    names = ["Great tit", "Daisy", "Magpie"]
    bundle(folder / "a.zip", "federated_train_user_120k.csv", train_csv(USER, names), csv_of_test(names))
    assert source(folder).listings()["test"].class_names == tuple(names)


@pytest.mark.parametrize("labels", [[4123, 17, 17], ["Great tit", "Daisy", "Daisy"]])
def test_a_label_that_two_classes_share_is_an_error(folder, labels):
    bundle(folder / "a.zip", "federated_train_user_120k.csv", train_csv(USER, labels), csv_of_test(labels))
    with pytest.raises(ValueError, match=f"'{labels[1]}' is both class 1 and class 2"):
        source(folder).listings()


def test_a_picture_in_the_folder_of_another_species_is_an_error(folder):
    write_tff(folder)
    old = folder / "train_val_images" / SPECIES[CLASS[3]] / f"{STEMS[3]}.jpg"
    old.rename(old.parent.parent.parent / SPECIES[0] / old.name)
    with pytest.raises(ValueError, match="class 1 is both 'Aves/Parus major' and 'Plantae/Bellis perennis'"):
        source(folder).listings()


def test_missing_pictures_are_counted_for_each_client(folder, tmp_path):
    write_tff(folder)
    for row in (0, 2, 5):
        (folder / "train_val_images" / SPECIES[CLASS[row]] / f"{STEMS[row]}.jpg").unlink()
    with pytest.raises(
        ValueError, match=r"3 of 7 pictures cannot be used: 3 missing, 0 broken; 2 clients lack some \(10: 2, 33: 1\)"
    ):
        source(folder).load()
    listing = pickle.loads(pickle.dumps(source(folder).listings()["train"]))  # as processes get it
    bad = prepare(listing, tmp_path / "packed", Shape(8), "skip", 1, lambda done: None)
    assert bad.clients == {"10": 2, "33": 1}
    examples = Examples.open(tmp_path / "packed")
    assert clients_of(examples, Natural()) == {"2": [STEMS[row] for row in (1, 3, 4, 6)]}
    assert examples.class_names[1:] == ("Bellis perennis", "Pica pica")


def official(folder: Path, train: int = 120_300) -> None:
    """Tables of the official size, of no pictures."""
    (folder / "train_val_images").mkdir()
    users = [*range(9275), *np.random.default_rng(0).integers(0, 9275, 120_300 - 9275)]
    rows = [f"{users[row]},{row:032x},{row % 1203},{row % 1203 + 5}" for row in range(train)]
    (folder / "federated_train_user_120k.csv").write_text("\n".join(["user_id,image_id,class,label", *rows]))
    tested = [f"{row + 10**9:032x},{row % 1203},{row % 1203 + 5}" for row in range(35_641)]
    (folder / "test.csv").write_text("\n".join(["image_id,class,label", *tested]))


def test_the_official_counts_are_asked_for(tmp_path):
    official(tmp_path)
    listings = source(tmp_path, expect="official").listings()
    assert {split: len(listing) for split, listing in listings.items()} == {"train": 120_300, "test": 35_641}
    assert len(listings["train"].class_names) == 1203
    path = tmp_path / "federated_train_user_120k.csv"
    text = path.read_text()
    path.write_text(text.rpartition("\n")[0])
    with pytest.raises(ValueError, match=r"iNaturalist-2017 user_120k: 120,299 training images instead of 120,300; .*expect=any"):
        source(tmp_path, expect="official").listings()
    head, last = text.rsplit("\n", 1)
    path.write_text(head + "\n" + last.replace(",1202,1207", ",0,5"))
    with pytest.raises(ValueError, match="every class should have 100 training images"):
        source(tmp_path, expect="official").listings()


def test_files_with_published_digests_are_compared(folder):
    write_tff(folder)
    with pytest.raises(
        ValueError, match=r"iNaturalist_train.csv is not the published file: its md5 is .*63d5a41699434bc2b13f5853f3764c18"
    ):
        source(folder, expect="official").listings()


# ----- drawn anew


COUNTS = {11: 100, 7: 99, 30: 150, 5: 120}  # training images of each category
UNKNOWN = {30: 30, 5: 25}  # how many of them have no photographer


def write_raw(folder: Path, shuffled: int | None = None, zips: bool = False) -> None:
    generator = np.random.default_rng(1)
    texts = {}
    for split, counts in (("train", COUNTS), ("val", {11: 3, 7: 4, 30: 2, 5: 1})):
        images, annotations, locations = [], [], []
        for category, count in counts.items():
            for _ in range(count):
                number = 10_000 * (split == "val") + 3 * len(images) + 1
                file = f"train_val_images/Aves/species {category}/{number:032x}.jpg"
                images.append({"id": number, "file_name": file, "width": 9, "height": 9, "rights_holder": "x"})
                annotations.append({"id": len(images), "image_id": number, "category_id": category})
                point = (
                    [None, None] if len(images) % 10 == 0 else [45.0 if len(images) % 3 else float(generator.uniform(-80, 80)), 7.0]
                )
                rank = sum(annotation["category_id"] == category for annotation in annotations)
                user = None if rank <= UNKNOWN.get(category, 0) else int(generator.integers(100))
                locations.append({"id": number, "lat": point[0], "lon": point[1], "user_id": user, "date": "", "loc_uncert": None})
        if split == "val":
            del locations[0]  # not every image is there
        if shuffled is not None:
            for table in (images, annotations, locations):
                np.random.default_rng(shuffled).shuffle(table)
        categories = [{"id": c, "name": f"species {c}", "supercategory": "Aves"} for c in COUNTS]
        texts[f"{split}2017.json"] = json.dumps({"images": images, "annotations": annotations, "categories": categories})
        texts[f"{split}2017_locations.json"] = json.dumps(locations)
    (folder / "train_val_images").mkdir(exist_ok=True)
    for name, text in texts.items():
        if zips:
            with zipfile.ZipFile(
                folder / ("inat2017_locations.zip" if "locations" in name else "train_val2017.zip"), "a"
            ) as archive:
                archive.writestr(f"top/{name}", text)
        else:
            (folder / name).write_text(text)


def raw(folder: Path, **settings) -> INaturalistRaw:
    return INaturalistRaw(path=folder, **{"expect": "any", **settings})


def drawn(folder: Path, **settings) -> dict[str, Examples]:
    return {split: listing.examples({}) for split, listing in raw(folder, **settings).listings().items()}


def test_species_with_a_hundred_images_are_kept_and_a_hundred_drawn_of_each(tmp_path):
    write_raw(tmp_path)
    parts = drawn(tmp_path)
    train, test = parts["train"], parts["test"]
    assert train.class_names == ("species 5", "species 11", "species 30")  # by number; the species of 99 is gone
    assert np.bincount(train.column("label")).tolist() == [95, 100, 100]  # of 120, 25 have no photographer
    assert np.bincount(test.column("label")).tolist() == [1, 3, 2]
    assert len(set(ids(train))) == len(train)
    listing = raw(tmp_path).listings()["train"]
    for path, label, stem in zip(listing.pictures, train.column("label"), ids(train), strict=True):
        assert path == tmp_path / "train_val_images" / "Aves" / train.class_names[label] / f"{stem}.jpg"


def test_what_becomes_of_images_without_photographer_can_be_chosen(tmp_path):
    write_raw(tmp_path)
    sizes = {how: np.bincount(drawn(tmp_path, drop_missing_user=how)["train"].column("label")) for how in ("before_count", "never")}
    assert sizes["before_count"].tolist() == [100, 100]  # species 5 has 95 with photographers, and is not counted
    assert sizes["never"].tolist() == [100, 100, 100]
    assert "client" in drawn(tmp_path)["train"].columns
    assert "client" not in drawn(tmp_path, drop_missing_user="never")["train"].columns


def test_photographers_and_coordinates_are_those_of_the_metadata(tmp_path):
    write_raw(tmp_path)
    located = {f"{entry['id']:032x}": entry for entry in json.loads((tmp_path / "train2017_locations.json").read_text())}
    train = drawn(tmp_path)["train"]
    assert train.column("client").tolist() == [located[stem]["user_id"] for stem in ids(train)]
    train = drawn(tmp_path, drop_missing_user="never")["train"]
    rows = [located[stem] for stem in ids(train)]
    for ours, theirs in (("latitude", "lat"), ("longitude", "lon")):
        np.testing.assert_array_equal(train.column(ours), [np.nan if entry[theirs] is None else entry[theirs] for entry in rows])
    assert np.isnan(train.column("latitude")).any()
    assert [entry["lat"] for entry in rows if entry["user_id"] is None and entry["lat"] is not None]


def test_places_and_photographers_become_clients_of_it(tmp_path):
    write_raw(tmp_path)
    train = drawn(tmp_path, drop_missing_user="never")["train"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some were taken at the same place
        clients = Geographic(most=20).assign(train, 0)
    assert clients.sizes.sum() == np.isfinite(train.column("latitude")).sum() < len(train)
    with pytest.raises(KeyError, match="no column 'client'"):
        Natural().assign(train, 0)
    photographers = Natural().assign(drawn(tmp_path)["train"], 0)
    assert photographers.sizes.sum() == 295


def test_the_draw_depends_on_the_seed_and_on_nothing_else(tmp_path):
    stems = []
    for number, how in enumerate(({}, {"shuffled": 4}, {"zips": True})):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_raw(folder, **how)
        stems.append(ids(drawn(folder)["train"]))
    assert stems[0] == stems[1] == stems[2]
    other = ids(drawn(folder, seed=1)["train"])
    assert other != stems[0]
    assert 50 < len(set(other) & set(stems[0])) < 295


def test_other_counts_than_the_papers_are_refused_and_named(tmp_path):
    write_raw(tmp_path)
    message = r"drop_missing_user=before_sample: 3 classes instead of 1,203, 295 training images instead of 120,300, 6 test"
    with pytest.raises(ValueError, match=message):
        raw(tmp_path, expect="official").listings()


BROKEN = {
    "truncated": (lambda text: text[:-20], "train2017.json cannot be read as JSON"),
    "another table": (lambda text: "[1, 2]", "train2017.json is no metadata of iNaturalist: TypeError"),
    "no images": (
        lambda text: text.replace('"images"', '"pictures"'),
        "train2017.json is no metadata of iNaturalist: KeyError 'images'",
    ),
    "an image twice": (lambda text: text.replace('{"id": 4,', '{"id": 1,', 1), "every image should be there once"),
    "an unknown category": (lambda text: text.replace('"category_id": 30', '"category_id": 31', 1), "one of the categories"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_metadata_that_are_none_are_named(tmp_path, what):
    write_raw(tmp_path)
    change, message = BROKEN[what]
    path = tmp_path / "train2017.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        raw(tmp_path).listings()


def test_metadata_that_are_missing_are_named(tmp_path):
    write_raw(tmp_path)
    (tmp_path / "val2017_locations.json").write_text('[{"id": 1}]')
    with pytest.raises(ValueError, match=r"val2017_locations.json is no table of locations of iNaturalist: KeyError 'user_id'"):
        raw(tmp_path).listings()
    (tmp_path / "val2017_locations.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"val2017_locations.json is missing under .*inat2017_locations.zip"):
        raw(tmp_path).listings()


@pytest.mark.parametrize("place", ["", "tables", "deep/down"])
@pytest.mark.parametrize("archive", [False, True])
def test_the_files_are_there_where_they_are_read(folder, place, archive):
    assert not INaturalist.is_in(folder)
    (folder / place).mkdir(parents=True, exist_ok=True)
    if archive:
        bundle(folder / place / "inaturalist-user-120k.zip", "federated_train_user_120k.csv", train_csv(USER), csv_of_test())
    else:
        write_tff(folder / place)
    assert INaturalist.is_in(folder)
    assert source(folder).listings()
    assert not INaturalistRaw.is_in(folder)
    assert not INaturalist.is_in(folder / "train_val_images")


def test_the_raw_files_are_there_unpacked_or_not(folder):
    names = ["train2017.json", "val2017_locations.json", "train2017_locations.json", "train_val2017.zip"]
    for name in names:
        assert not INaturalistRaw.is_in(folder)
        (folder / name).touch()
    assert INaturalistRaw.is_in(folder)
