"""PASCAL VOC 2012 and the Semantic Boundaries Dataset, in the folders into which their archives unpack."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from PIL import Image

from fedlens.data.sources.sbd import CLASS_NAMES, SBD, Masks
from fedlens.data.sources.voc import VOC

HEIGHT, WIDTH = 30, 40


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT), (shade, shade, shade)).save(path)


def segmentation(*classes: int) -> np.ndarray:
    """Background with a stripe for each class."""
    values = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    for place, number in enumerate(classes):
        values[4 * place : 4 * place + 4] = number
    return values


def write_mat(path: Path, values: np.ndarray, present: object) -> None:
    """As SBD's: a struct with sparse boundaries, and a scalar where there is one category."""
    path.parent.mkdir(parents=True, exist_ok=True)
    boundaries = np.empty((20, 1), dtype=object)
    for k in range(20):
        boundaries[k, 0] = scipy.sparse.csc_matrix(values.shape, dtype=bool)
    truth = {"Boundaries": boundaries, "Segmentation": values, "CategoriesPresent": present}
    scipy.io.savemat(path, {"GTcls": truth}, do_compression=True)


def write_png(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = Image.fromarray(values)
    mask.putpalette([shade for index in range(256) for shade in (index, 255 - index, 7 * index % 256)])
    mask.save(path)


def write_list(path: Path, *ids: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{i}\n" for i in ids))


def thing(name: str, box: tuple[object, ...], difficult: int = 0, more: str = "") -> str:
    corners = "".join(f"<{edge}>{value}</{edge}>" for edge, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<object><name>{name}</name>{more}<difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"


def write_xml(path: Path, *things: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<annotation><folder>VOC2012</folder>{''.join(things)}</annotation>")


@pytest.fixture
def sbd(tmp_path) -> Path:
    folder = tmp_path / "benchmark_RELEASE" / "dataset"
    classes = {"2008_000002": (20,), "2008_000003": (15, 19), "2008_000007": (4,), "2008_000008": (13, 15)}
    for shade, (name, present) in enumerate(classes.items()):
        picture(folder / "img" / f"{name}.jpg", 40 * shade)
        write_mat(folder / "cls" / f"{name}.mat", segmentation(*present), np.uint8(present if len(present) > 1 else present[0]))
    write_list(folder / "train.txt", "2008_000003", "2008_000002")
    write_list(folder / "val.txt", "2008_000007", "2008_000008")
    return folder


@pytest.fixture
def voc(tmp_path) -> Path:
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    masks = {
        "2007_000032": segmentation(1, 15, 255),
        "2007_000039": segmentation(20, 255),
        "2008_000002": segmentation(20, 255),  # in SBD, too
        "2008_000008": segmentation(13, 15, 255),  # in SBD, too
    }
    for shade, (name, values) in enumerate(masks.items()):
        picture(folder / "JPEGImages" / f"{name}.jpg", 200 + shade)
        write_png(folder / "SegmentationClass" / f"{name}.png", values)
    write_list(folder / "ImageSets" / "Segmentation" / "train.txt", "2007_000032", "2008_000008")
    write_list(folder / "ImageSets" / "Segmentation" / "val.txt", "2007_000039", "2008_000002")
    write_list(folder / "ImageSets" / "Main" / "train.txt", "2007_000032", "2007_000039")
    write_list(folder / "ImageSets" / "Main" / "val.txt", "2008_000002")
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    write_xml(
        folder / "Annotations" / "2007_000032.xml",
        thing("aeroplane", (1, 1, 40, 30)),
        thing("person", (3, "4.6", 10, 20), more=part),
        thing("person", (11, 12, 13, 14), difficult=1),
    )
    write_xml(folder / "Annotations" / "2007_000039.xml", thing("tvmonitor", (5, 6, 7, 8), difficult=1))
    write_xml(folder / "Annotations" / "2008_000002.xml", thing("tvmonitor", (5, 6, 7, 8)))
    return folder


def small(source: type, path: Path, **settings: object):
    return source(path=path, size=32, expect="any", **settings)


def listings(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SBD's of what it shares with VOC
        return source.listings()


def load(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return source.load()


def present(listing, row: int) -> list[int]:
    return np.flatnonzero(listing.columns["labels"][row]).tolist()


@pytest.mark.parametrize("where", ["above", "release", "itself"])
def test_sbd_has_its_own_splits_masks_and_classes(sbd, where):
    path = {"above": sbd.parent.parent, "release": sbd.parent, "itself": sbd}[where]
    found = listings(small(SBD, path))
    train, validation = found["train"], found["validation"]
    assert train.keys == ["2008_000003", "2008_000002"]
    assert validation.keys == ["2008_000007", "2008_000008"]
    assert [present(train, 0), present(train, 1), present(validation, 0)] == [[15, 19], [20], [4]]
    assert train.columns["labels"].shape == (2, 21)
    assert train.class_names[15] == "person"
    assert (train.class_names[19], train.class_names[20]) == ("train", "tvmonitor")
    np.testing.assert_array_equal(train.masks[0], segmentation(15, 19))
    assert train.pictures[0] == sbd / "img" / "2008_000003.jpg"


def test_masks_of_sbd_are_decoded_beside_their_pictures(sbd):
    with pytest.warns(UserWarning, match="validation pictures of PASCAL VOC"):
        train = small(SBD, sbd, fit="stretch").load().train
    assert train.column("mask").shape == (2, 32, 32)
    assert set(np.unique(train.column("mask")[0])) == {0, 15, 19}
    assert train.column("image")[1].max() < 10  # the darkest picture


def test_masks_can_be_sent_to_another_process(sbd):
    masks = pickle.loads(pickle.dumps(listings(small(SBD, sbd))["train"].masks))
    assert isinstance(masks, Masks)
    np.testing.assert_array_equal(masks[1], segmentation(20))


def test_sbd_says_how_many_of_its_pictures_voc_measures_on(sbd, voc):
    with pytest.warns(UserWarning, match="1 of SBD's pictures to train on are validation pictures of PASCAL VOC 2012"):
        small(SBD, sbd.parent.parent).listings()


def test_sbd_counts_its_pictures(sbd):
    with pytest.raises(ValueError, match=r"2 pictures in train.txt instead of 8,498, 2 pictures in val.txt instead of 2,857"):
        SBD(path=sbd).listings()


def test_a_picture_of_sbd_is_in_one_split(sbd):
    write_list(sbd / "val.txt", "2008_000007", "2008_000002")
    with pytest.raises(ValueError, match=r"val\.txt: '2008_000002' stands in train\.txt as well"):
        small(SBD, sbd).listings()


@pytest.mark.parametrize(
    ("content", "message"), [("", "names no picture"), ("2008_000007\n2008_000007\n", "names '2008_000007' twice")]
)
def test_a_list_names_each_picture_once(sbd, content, message):
    (sbd / "val.txt").write_text(content)
    with pytest.raises(ValueError, match=rf"val\.txt {message}"):
        small(SBD, sbd).listings()


def test_a_missing_list_is_named(sbd):
    (sbd / "val.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"val\.txt is missing \(unpack benchmark\.tgz"):
        small(SBD, sbd).listings()


@pytest.mark.parametrize("bytes_left", [None, 0, 300])
def test_a_missing_or_torn_mask_is_refused_or_skipped_with_its_picture(sbd, bytes_left):
    file = sbd / "cls" / "2008_000003.mat"
    content = file.read_bytes()
    file.unlink() if bytes_left is None else file.write_bytes(content[:bytes_left])
    problem = "1 missing, 0 broken" if bytes_left is None else "0 missing, 1 broken"
    with pytest.raises(ValueError, match=rf"{problem}(.|\n)*2008_000003: .*2008_000003\.mat"):
        load(small(SBD, sbd))
    train = load(small(SBD, sbd, missing="skip")).train
    assert len(train) == 1
    assert np.flatnonzero(train.column("labels")[0]).tolist() == [20]


@pytest.mark.parametrize("wrong", [0, 21])
def test_a_category_that_does_not_exist_is_refused(sbd, wrong):
    write_mat(sbd / "cls" / "2008_000002.mat", segmentation(20), np.uint8([wrong, 20]))
    with pytest.raises(ValueError, match=rf"2008_000002\.mat holds class {wrong}; there are 1 … 20"):
        listings(small(SBD, sbd))


def test_voc_segmentation_keeps_void_apart(voc):
    found = small(VOC, voc.parent.parent, fit="stretch").load()
    assert found.train.class_names == CLASS_NAMES
    assert set(np.unique(found.train.column("mask")[0])) == {0, 1, 15, 255}
    assert np.flatnonzero(found.train.column("labels")[0]).tolist() == [1, 15]
    assert np.flatnonzero(found.validation.column("labels")[1]).tolist() == [20]
    assert (len(found.train), len(found.validation), found.test) == (2, 2, None)


def test_beyond_a_picture_a_mask_is_void(voc):
    mask = small(VOC, voc).load().train.column("mask")[0]  # 40 × 30 becomes 32 × 24
    assert (mask[:4] == 255).all()
    assert (mask[-4:] == 255).all()
    assert (mask[4:-4] != 255).any()


def test_trainaug_is_what_either_marks_without_what_voc_measures_on(voc, sbd):
    found = listings(small(VOC, voc.parent.parent, protocol="trainaug"))
    train = found["train"]
    assert list(train.keys) == ["2007_000032", "2008_000003", "2008_000007", "2008_000008"]
    assert found["validation"].keys == ["2007_000039", "2008_000002"]
    assert train.masks[0] == voc / "SegmentationClass" / "2007_000032.png"
    assert train.masks[3] == voc / "SegmentationClass" / "2008_000008.png"  # VOC's own, though SBD has one
    np.testing.assert_array_equal(train.masks[1], segmentation(15, 19))
    assert train.pictures[1] == sbd / "img" / "2008_000003.jpg"
    assert [present(train, row) for row in range(4)] == [[1, 15], [15, 19], [4], [13, 15]]


def test_trainaug_finds_sbd_elsewhere(voc, sbd, tmp_path):
    moved = (sbd.parent).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"train\.txt is missing \(unpack benchmark\.tgz"):
        small(VOC, voc, protocol="trainaug").listings()
    assert len(small(VOC, voc, protocol="trainaug", sbd_path=moved).listings()["train"]) == 4


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("segmentation", "2 pictures to train on instead of 1,464, 2 validation pictures instead of 1,449"),
        ("trainaug", "4 pictures to train on instead of 10,582, 2 validation pictures instead of 1,449"),
        ("detection", "2 pictures to train on instead of 5,717, 1 validation pictures instead of 5,823"),
    ],
)
def test_voc_counts_its_pictures(voc, sbd, protocol, message):
    with pytest.raises(ValueError, match=f"{protocol}: {message}"):
        VOC(path=voc.parent.parent, protocol=protocol).listings()


def test_a_picture_of_voc_is_in_one_split(voc):
    write_list(voc / "ImageSets" / "Segmentation" / "val.txt", "2007_000032")
    with pytest.raises(ValueError, match=r"val\.txt: '2007_000032' stands in train\.txt as well"):
        small(VOC, voc).listings()


def test_a_mask_with_an_unknown_class_is_refused(voc):
    write_png(voc / "SegmentationClass" / "2007_000039.png", segmentation(33))
    with pytest.raises(ValueError, match=r"2007_000039\.png holds class 33"):
        small(VOC, voc).listings()


def test_a_mask_of_colours_is_broken(voc):
    Image.new("RGB", (WIDTH, HEIGHT), (33, 33, 33)).save(voc / "SegmentationClass" / "2007_000039.png")
    with pytest.raises(ValueError, match=r"0 missing, 1 broken(.|\n)*is no mask: it has RGB pixels"):
        small(VOC, voc).load()


def test_voc_detection_counts_pixels_from_edge_to_edge(voc):
    found = listings(small(VOC, voc, protocol="detection"))
    train = found["train"]
    np.testing.assert_allclose(train.columns["boxes"][0], [[0, 0, 40, 30], [2, 3.6, 10, 20]], rtol=1e-6)
    assert train.columns["box_label"].tolist() == [[0, 14], [-1, -1]]
    assert (train.class_names[0], train.class_names[14], len(train.class_names)) == ("aeroplane", "person", 20)
    assert np.flatnonzero(train.columns["labels"][0]).tolist() == [0, 14]
    assert train.columns["labels"][1].sum() == 0
    assert found["validation"].columns["box_label"].tolist() == [[19]]


def test_difficult_objects_count_if_they_are_wanted(voc):
    train = small(VOC, voc, protocol="detection", difficult=True).listings()["train"]
    assert train.columns["box_label"].tolist() == [[0, 14, 14], [19, -1, -1]]
    assert train.columns["label_counts"][0, 14] == 2
    assert train.columns["labels"].max() == 1


def test_boxes_of_voc_move_with_their_pictures(voc):
    train = small(VOC, voc, protocol="detection").load().train  # 40 × 30 becomes 32 × 24, 4 below the top
    np.testing.assert_allclose(train.column("boxes")[0, 0], [0, 4, 32, 28], atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<annotation><object>", r"cannot be read as XML .*truncated"),
        (f"<annotation>{thing('zebra', (1, 2, 3, 4))}</annotation>", "object 1 is called 'zebra', which is no class"),
        (f"<annotation>{thing('cow', (1, 2, 'x', 4))}</annotation>", "the box of object 1 should be four numbers"),
        ("<annotation><object><name>cow</name></object></annotation>", "the box of object 1 should be four numbers"),
    ],
)
def test_a_wrong_annotation_is_named(voc, content, message):
    (voc / "Annotations" / "2007_000039.xml").write_text(content)
    with pytest.raises(ValueError, match=rf"2007_000039\.xml.*{message}"):
        small(VOC, voc, protocol="detection").listings()


def test_a_missing_annotation_is_named(voc):
    (voc / "Annotations" / "2007_000039.xml").unlink()
    with pytest.raises(FileNotFoundError, match=r"2007_000039\.xml is missing \(unpack VOCtrainval"):
        small(VOC, voc, protocol="detection").listings()


@pytest.mark.parametrize("name", ["sbd", "voc"])
def test_the_files_are_there_where_they_are_read(name, request):
    source, top = (SBD, "cls") if name == "sbd" else (VOC, "JPEGImages")
    folder = request.getfixturevalue(name)
    for place in (folder, folder.parent, folder.parent.parent):
        assert source.is_in(place)
    (folder / top).rename(folder / "elsewhere")
    assert not source.is_in(folder)
    assert not source.is_in(folder / "nowhere")
