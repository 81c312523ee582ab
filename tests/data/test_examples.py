"""Examples as columns in memory and on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Examples
from fedlens.data.examples import SAMPLED_ROWS


def pictures(count: int = 6) -> dict[str, np.ndarray]:
    image = np.arange(count * 2 * 3 * 3, dtype=np.uint8).reshape(count, 2, 3, 3)
    return {"image": image, "label": np.arange(count) % 3, "user": np.array([f"user {i}" for i in range(count)])}


def test_save_and_open_give_the_same_examples_without_reading_them(tmp_path):
    examples = Examples(pictures(), "pictures", ("a", "b", "c"), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    opened = Examples.open(examples.save(tmp_path / "deep" / "folder"))
    assert all(isinstance(values, np.memmap) and not values.flags.writeable for values in opened.columns.values())
    assert list(opened.columns) == list(examples.columns)
    for name, values in examples.columns.items():
        np.testing.assert_array_equal(opened.column(name), values)
        assert opened.column(name).dtype == values.dtype
    facts = ("name", "class_names", "mean", "standard_deviation")
    assert [getattr(opened, fact) for fact in facts] == [getattr(examples, fact) for fact in facts]
    assert len(opened) == 6
    assert opened.fingerprint() == examples.fingerprint()


def test_a_folder_without_examples_is_an_error_that_says_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"examples\.json is missing; write them with Examples\.save"):
        Examples.open(tmp_path)


def test_pickles_are_neither_written_nor_read(tmp_path):
    objects = np.array([{}] * 6, dtype=object)
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        Examples({"label": objects}).save(tmp_path)
    Examples(pictures()).save(tmp_path)
    np.save(tmp_path / "label.npy", objects, allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects in dtype"):
        Examples.open(tmp_path)


@given(column=st.sampled_from(["image", "label", "user"]), place=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_the_fingerprint_of_small_data_changes_with_every_bit(column, place, bit):
    columns = pictures()
    before = Examples(columns).fingerprint()
    raw = columns[column].view(np.uint8).reshape(-1)
    raw[place % len(raw)] ^= np.uint8(1 << bit)
    assert Examples(columns).fingerprint() != before


def test_the_fingerprint_covers_names_types_and_shapes():
    label = np.zeros(6, dtype=np.int64)
    others = [
        {"label": label},
        {"other": label},
        {"label": label.astype(np.int32)},
        {"label": label.reshape(6, 1)},
        {"label": label[:5]},
    ]
    assert len({Examples(columns).fingerprint() for columns in others}) == len(others)


def test_the_fingerprint_of_large_data_changes_with_any_label_and_with_sampled_images():
    count = 4 * SAMPLED_ROWS
    columns = {"image": np.zeros((count, 1, 1, 1), dtype=np.uint8), "label": np.zeros(count, dtype=np.int64)}
    prints = {Examples(columns).fingerprint()}
    for place in (1, count // 2 + 1, count - 1):
        columns["label"][place] = 1
        prints.add(Examples(columns).fingerprint())
    columns["image"][:4] = 1
    prints.add(Examples(columns).fingerprint())
    assert len(prints) == 5


@pytest.mark.parametrize("count", [0, 1])
def test_none_or_one_example_is_a_data_set_too(tmp_path, count):
    examples = Examples({"image": np.zeros((count, 2, 2, 1), np.uint8), "label": np.zeros(count, np.int64)}, class_names=("a", "b"))
    assert len(examples) == count
    assert Examples(examples.columns).fingerprint() == examples.fingerprint()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns must be equally long, and there must be one"),
        ({"label": np.zeros(2, int), "user": np.zeros(3, int)}, r"equally long.*'label': 2, 'user': 3"),
        ({"image": np.zeros((2, 2, 2, 1), np.float32)}, r"column 'image' must be uint8.*got float32 \(2, 2, 2, 1\)"),
        ({"image": np.zeros((2, 2, 2), np.uint8)}, r"column 'image' must be uint8.*got uint8 \(2, 2, 2\)"),
        ({"label": np.array([0, 2])}, r"labels must lie in 0…1; found 2"),
        ({"label": np.array([0, -1])}, r"labels must lie in 0…1; found -1"),
    ],
)
def test_what_is_no_data_set_is_refused(columns, message):
    with pytest.raises(ValueError, match=f"mine: .*{message}"):
        Examples(columns, "mine", class_names=("a", "b"))


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are():
    with pytest.raises(KeyError, match="mine has no column 'client'; it has: image, label, user"):
        Examples(pictures(), "mine").column("client")


BROKEN = {
    "an empty column": ("label.npy", lambda whole: b""),
    "a truncated column": ("image.npy", lambda whole: whole[:-5]),
    "a truncated header": ("label.npy", lambda whole: whole[:70]),
    "a header that makes no sense": ("label.npy", lambda whole: whole.replace(b"}", b"{")),
    "a column of something else": ("label.npy", lambda whole: b"PK\x03\x04" + whole),
    "no JSON": ("examples.json", lambda whole: whole[:-3]),
    "an empty description": ("examples.json", lambda whole: b""),
    "a description in another encoding": ("examples.json", lambda whole: whole.replace(b"mine", "Zoë".encode("latin-1"))),
    "a missing key": ("examples.json", lambda whole: whole.replace(b'"mean"', b'"meen"')),
    "a list in place of a description": ("examples.json", lambda whole: b"[]"),
    "a mean that is no number": ("examples.json", lambda whole: whole.replace(b'"mean": []', b'"mean": ["x"]')),
    "a column that is not there": ("examples.json", lambda whole: whole.replace(b'"label"', b'"lable"')),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_folder_is_refused_in_a_line_that_names_the_file(tmp_path, what):
    name, broken = BROKEN[what]
    Examples(pictures(), "mine").save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(broken(whole))
    assert broken(whole) != whole
    with pytest.raises(ValueError, match=r"is (missing or )?damaged: .*; write it anew") as caught:
        Examples.open(tmp_path)
    named = "lable.npy" if what == "a column that is not there" else name
    assert str(caught.value).startswith(str(tmp_path / named))
    assert "\n" not in str(caught.value)


def test_numbers_that_stand_for_names_can_be_read_as_such():
    data = Examples({"client": np.array([1, 0, 1]), "label": np.arange(3)}, categories={"client": np.array(["ann", "bob"])})
    assert data.named("client").tolist() == ["bob", "ann", "bob"]
    assert data.named("label").tolist() == [0, 1, 2]
