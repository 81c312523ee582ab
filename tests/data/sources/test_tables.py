"""Tables in folders and zips, read by the names of their columns."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data.sources import tables
from fedlens.data.sources.tables import Place, at_most, federated, find, identities, names_of_classes, read


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def zipped(path: Path, **members: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("member", ["train.csv", "bundle/train.csv", "a/b/train.csv"])
def test_a_table_is_read_straight_from_a_zip_with_and_without_a_top_folder(tmp_path, member):
    path = zipped(tmp_path / "deep" / "bundle.zip", **{"__MACOSX/bundle/train.csv": "rubbish", member: "x,y\n1,2\n"})
    for where in (tmp_path, path):
        place = find(where, "train.csv")
        assert place == Place(path, member)
        assert str(place) == f"{path}/{member}"
        assert read(place, "y")["y"].tolist() == ["2"]


def test_a_table_is_found_anywhere_but_among_pictures_and_before_one_that_is_still_in_a_zip(tmp_path):
    for folder in ("images", "train_val_images", "a", "train/0/1/2", ".hidden"):
        write(tmp_path / folder / "train.csv", "x\npicture\n")
    assert find(tmp_path, "train.csv") is None
    zipped(tmp_path / "bundle.zip", **{"train.csv": "x\nzip\n"})
    assert read(find(tmp_path, "train.csv"), "x")["x"].tolist() == ["zip"]
    unpacked = write(tmp_path / "some" / "where" / "train.csv", "x\nfolder\n")
    assert find(tmp_path, "train.csv") == Place(unpacked)
    assert find(unpacked, "train.csv") == Place(unpacked)


def test_the_first_name_that_is_there_counts_and_names_may_be_patterns(tmp_path):
    first, second = write(tmp_path / "zzz" / "one_30k.csv", "x\n1\n"), write(tmp_path / "two.csv", "x\n2\n")
    assert find(tmp_path, "one*30k.csv", "two.csv").path == first
    assert find(tmp_path, "one*3k.csv", "two.csv").path == second


def test_copies_are_as_good_as_each_other_but_files_that_differ_are_not(tmp_path):
    one, other = write(tmp_path / "here" / "train.csv", "x\n1\n"), write(tmp_path / "there" / "train.csv", "x\n1\n")
    assert find(tmp_path, "train.csv") == Place(one)
    write(other, "x\n2\n")
    with pytest.raises(ValueError, match=f"several files called 'train.csv' that differ: {one}, {other}; give"):
        find(tmp_path, "train.csv")


def test_links_are_followed_but_not_in_circles(tmp_path):
    elsewhere = write(tmp_path / "elsewhere" / "train.csv", "x\n1\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / "link").symlink_to(elsewhere.parent)
    (data / "back").symlink_to(data)
    assert find(data, "train.csv") == Place(data / "link" / "train.csv")


def test_what_lies_beside_a_file_is_in_the_same_folder_of_the_same_zip(tmp_path):
    path = zipped(tmp_path / "bundle.zip", **{"a/train.csv": "", "a/test.csv": "", "b/other.csv": ""})
    assert Place(path, "a/train.csv").beside("test.csv") == Place(path, "a/test.csv")
    assert Place(path, "a/train.csv").beside("other.csv") is None
    file = write(tmp_path / "train.csv", "")
    assert Place(file).beside("bundle.zip") == Place(path)
    assert Place(file).beside("test.csv") is None


def test_columns_are_read_by_name_in_any_order_with_quoted_commas_and_lines(tmp_path):
    text = '\ufeffTitle, ID ,author\r\n"Towers, two",7,"Ann ""A"" Lee, ed."\r\n\r\n"two\r\nlines",8,Zoë\r\n'
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = read(Place(path), "author", "id", optional=("title", "label"))
    assert table.keys() == {"author", "id", "title"}
    assert table["id"].tolist() == ["7", "8"]
    assert table["author"].tolist() == ['Ann "A" Lee, ed.', "Zoë"]
    assert table["title"].tolist() == ["Towers, two", "two\r\nlines"]


BROKEN = {
    "an unknown header": (b"user,image\n1,2\n", "has no column 'x' in its first line; it has: user, image"),
    "nothing at all": (b"", "has no column 'x' in its first line; it has: "),
    "no rows": (b"x,y\n", "has no rows"),
    "a row cut off": (b"x,y\n1,2\n3", "line 3: 1 fields, not 2; truncated download?"),
    "an empty field": (b"x,y\n1,2\n,3\n", "row 2: 'x' is empty"),
    "no text": (b"x,y\n\xff\xfe,1\n", "cannot be read (UnicodeDecodeError"),
    "a quote that never ends": (b'x,y\n1,"' + b"a,b\n" * 500, "cannot be read (Error: field larger"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_with_a_table_is_said_with_its_name(tmp_path, monkeypatch, what):
    monkeypatch.setattr(tables, "LONGEST", 1000)
    content, message = BROKEN[what]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}") + ".*" + re.escape(message)):
        read(Place(path), "x", "y")


def test_a_field_may_be_long(tmp_path):
    images = " ".join(f"{number:016x}" for number in range(50_000))
    assert read(Place(write(tmp_path / "t.csv", f"landmark_id,images\n7,{images}\n")), "images")["images"].tolist() == [images]


def test_a_damaged_zip_is_named(tmp_path):
    path = zipped(tmp_path / "bundle.zip", **{"train.csv": "x\n" + "1\n2\n3\n" * 99})
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-30])
    with pytest.raises(ValueError, match=f"{path} cannot be read as a zip.*truncated"):
        find(tmp_path, "train.csv")
    content[50] ^= 0xFF  # within the compressed table
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}/train.csv cannot be read .*truncated"):
        read(find(tmp_path, "train.csv"), "x")


def test_a_number_that_is_none_is_named_with_its_row(tmp_path):
    place = Place(tmp_path / "t.csv")
    assert tables.integers(np.array(["3", "-1"]), "class", place).tolist() == [3, -1]
    for wrong in ("x", "1.0", "9" * 30, "1e3"):
        with pytest.raises(ValueError, match=rf"t.csv, row 2: 'class' should be a whole number; it is '{wrong}'"):
            tables.integers(np.array(["3", wrong]), "class", place)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_users_that_are_numbers_sort_as_numbers(numbers):
    assert identities(np.array([str(number) for number in numbers])).tolist() == numbers


@pytest.mark.parametrize("odd", ["ann", "01", "1.0", "80c", "", "9" * 20, " 3", "1_000", "+4"])
def test_users_of_whom_one_is_no_plain_number_are_texts(odd):
    users = np.array(["10", "2", odd])
    assert identities(users).tolist() == users.tolist()


def test_published_digests_are_compared(tmp_path):
    path = write(tmp_path / "images_000.csv", "x\n1\n")
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    place = Place(path)
    tables.check_md5(place, {})
    tables.check_md5(place, {"images_000.csv": digest, "other.csv": "0" * 32})
    with pytest.raises(ValueError, match=f"{path} is not the published file: its md5 is {digest}, not {'0' * 32}"):
        tables.check_md5(place, {"images_000.csv": "0" * 32})
    for name in ("md5.images_000.txt", "images_000.csv.md5"):
        beside = write(tmp_path / name, f"{digest.upper()}  images_000.csv\n")  # only the first word is the digest
        tables.check_md5(place, {})
        write(beside, f"{'1' * 32}  images_000.csv\n")
        with pytest.raises(ValueError, match="is not the published file"):
            tables.check_md5(place, {})
        write(beside, "images_000.csv")
        with pytest.raises(ValueError, match=f"{name} is no md5 file"):
            tables.check_md5(place, {})
        beside.unlink()


TRAIN = "user_id,image_id,class\n10,d,1\nNA,e,1\n2,c,0\n10,a,0\n2,b,2\n"
TEST = "image_id,class\nz,1\ny,0\n"


def pair(folder: Path, train: str = TRAIN, test: str = TEST):
    return federated(Place(write(folder / "train.csv", train)), Place(write(folder / "test.csv", test)))


def test_pictures_of_a_client_lie_side_by_side_and_those_of_nobody_are_left_out(tmp_path):
    train, test = pair(tmp_path)
    assert train.image.tolist() == ["b", "c", "a", "d"]
    assert train.client.tolist() == [2, 2, 10, 10]
    assert train.label.tolist() == [2, 0, 0, 1]
    assert (test.image.tolist(), test.label.tolist(), test.client) == (["y", "z"], [0, 1], None)
    assert train.original is None


def test_the_order_of_rows_does_not_matter(tmp_path):
    head, *lines = TRAIN.splitlines()
    for given_, shuffled in zip(
        pair(tmp_path)[0].columns.items(), pair(tmp_path, "\n".join([head, *lines[::-1]]))[0].columns.items(), strict=True
    ):
        assert given_[0] == shuffled[0]
        np.testing.assert_array_equal(given_[1], shuffled[1])


def test_tables_that_are_no_pair_are_refused(tmp_path):
    wrong = {
        "pictures stand in .*train.csv and in .*test.csv, a is one": {"test": TEST + "a,1\n"},
        "classes should be 0, 1, … without gaps; there are 4": {"test": TEST + "x,9\n"},
        "'image_id' a stands in 2 rows": {"train": TRAIN + "3,a,1\n"},
        "'user_id' is NA in all 1 rows": {"train": "user_id,image_id,class\nNA,a,1\n"},
        "'../a' is no image_id: it is a path": {"train": TRAIN + "3,../a,1\n"},
        "'class' should be a whole number; it is 'tower'": {"train": TRAIN + "3,f,tower\n"},
        "'class' is empty": {"test": TEST + "x,\n"},
    }
    for message, texts in wrong.items():
        with pytest.raises(ValueError, match=message):
            pair(tmp_path, **texts)


def test_a_class_has_one_name_and_a_name_one_class():
    label = np.array([0, 1, 1, 0, 2])
    assert names_of_classes(label, np.array(["oak", "elm", "", "oak", ""]), "t") == {0: "oak", 1: "elm"}
    assert names_of_classes(label, np.array([""] * 5), "t") == {}
    with pytest.raises(ValueError, match="t: class 1 is both 'ash' and 'elm'"):
        names_of_classes(label, np.array(["oak", "elm", "ash", "oak", "fir"]), "t")
    with pytest.raises(ValueError, match="t: 'oak' is both class 0 and class 2"):
        names_of_classes(label, np.array(["oak", "elm", "elm", "oak", "oak"]), "t")


def test_pictures_are_found_by_stem(tmp_path):
    for file in ("Aves/Parus major/a1.jpg", "Aves/Parus major/a1b.jpeg", "Plantae/b2.JPG", "c3"):
        write(tmp_path / file, "")
    found = tables.pictures_by_stem(tmp_path, np.array(["b2", "a1", "c3"]))
    assert found == [tmp_path / "Plantae/b2.JPG", tmp_path / "Aves/Parus major/a1.jpg", tmp_path / "c3.jpg"]
    write(tmp_path / "copy" / "a1.jpg", "")
    with pytest.raises(ValueError, match="two pictures have the id a1"):
        tables.pictures_by_stem(tmp_path, np.array(["a1"]))


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_at_most_so_many_of_each_group_are_drawn(groups, most, seed):
    group = np.array(groups, dtype=np.int64)
    rows = at_most(group, most, np.random.default_rng(seed))
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.bincount(group[rows], minlength=5), np.minimum(np.bincount(group, minlength=5), most))


def test_every_member_of_a_group_is_drawn_equally_often():
    group = np.repeat([7, 3], [5, 2])
    generator = np.random.default_rng(0)
    drawn = np.bincount(np.concatenate([at_most(group, 2, generator) for _ in range(2000)]), minlength=7)
    assert drawn[5:].tolist() == [2000, 2000]
    np.testing.assert_allclose(drawn[:5], 800, atol=5 * (2000 * 0.4 * 0.6) ** 0.5)
