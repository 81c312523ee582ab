"""TensorFlow Federated's data sets, in the files that it downloads and in its older ones."""

from __future__ import annotations

import contextlib
import lzma
import sqlite3
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data.sources.celeba import ATTRIBUTES
from fedlens.data.sources.tff import TFFCIFAR100, TFFEMNIST, TFFCelebA
from fedlens.data.sources.tff_files import Broken, features, floats, integers

GENERATOR = np.random.default_rng(0)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: np.ndarray, packed: bool = True) -> bytes:
    """A tf.train.Feature: a list of floats (2) or integers (3), packed as protobuf writes them by default, or one by one."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "f":
        parts = [struct.pack("<f", value) for value in flat]
        return block(2, block(1, b"".join(parts)) if packed else b"".join(varint(1 << 3 | 5) + part for part in parts))
    parts = [varint(int(value)) for value in flat]
    return block(3, block(1, b"".join(parts)) if packed else b"".join(varint(1 << 3) + part for part in parts))


def example(values: dict[str, np.ndarray], packed: bool = True) -> bytes:
    entries = [block(1, block(1, name.encode()) + block(2, feature(value, packed))) for name, value in values.items()]
    return block(1, b"".join(entries))


Rows = dict[str, list[tuple[str, dict[str, np.ndarray]]]]


def write_database(path: Path, splits: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    for split, rows in splits.items():
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", [(split, client, example(row)) for client, row in rows])
        clients = [client for client, _ in rows]
        counts = [(client, split, clients.count(client)) for client in sorted(set(clients))]
        database.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", counts)
    database.commit()
    database.close()
    return path


def write_hdf5(path: Path, rows: list[tuple[str, dict[str, np.ndarray]]]) -> None:
    with h5py.File(path, "w") as file:
        for client in sorted({client for client, _ in rows}):
            own = [row for name, row in rows if name == client]
            for name in own[0]:
                file[f"examples/{client}/{name}"] = np.stack([row[name] for row in own])


def cifar(clients: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    return [
        (client, {
            "coarse_label": GENERATOR.integers(0, 20, dtype=np.int64),
            "image": GENERATOR.integers(0, 256, (32, 32, 3)),
            "label": GENERATOR.integers(0, 100, dtype=np.int64),
        })
        for client in clients
    ]  # fmt: skip


def characters(clients: list[str], classes: int = 62) -> list[tuple[str, dict[str, np.ndarray]]]:
    return [
        (client, {
            "label": GENERATOR.integers(0, classes, dtype=np.int64),
            "pixels": (GENERATOR.integers(0, 256, (28, 28)) / 255).astype(np.float32),
        })
        for client in clients
    ]  # fmt: skip


CIFAR: Rows = {"train": cifar("0110"), "test": cifar("010")}
WRITERS = ["f0000_14", "f0001_41", "f0000_14"]
EMNIST: Rows = {f"{kind}_{part}": characters(WRITERS, 10) for kind in ("all", "digits_only") for part in ("train", "test")}


def stacked(rows: list[tuple[str, dict[str, np.ndarray]]], name: str) -> np.ndarray:
    return np.stack([row[name] for _, row in rows])


def clients(examples) -> list[str]:
    return examples.categories["client"][examples.column("client")].tolist()


def test_cifar_100_has_its_pixels_labels_and_clients(tmp_path):
    write_database(tmp_path / "cifar100.sqlite", CIFAR)
    sources = TFFCIFAR100(path=tmp_path, expect="any").load()
    for examples, rows in ((sources.train, CIFAR["train"]), (sources.test, CIFAR["test"])):
        assert examples.column("image").dtype == np.uint8
        for name in ("image", "label", "coarse_label"):
            np.testing.assert_array_equal(examples.column(name), stacked(rows, name))
        assert clients(examples) == [client for client, _ in rows]
        assert len(examples.class_names) == 100


@pytest.mark.parametrize("only_digits", [False, True])
def test_emnist_keeps_dark_ink_on_white_paper(tmp_path, only_digits):
    write_database(tmp_path / "tff" / "emnist_all.sqlite", EMNIST)
    sources = TFFEMNIST(path=tmp_path, only_digits=only_digits, expect="any").load()
    kind = "digits_only" if only_digits else "all"
    for examples, part in ((sources.train, "train"), (sources.test, "test")):
        rows = EMNIST[f"{kind}_{part}"]
        np.testing.assert_array_equal(examples.column("image")[..., 0], np.rint(stacked(rows, "pixels") * 255))
        np.testing.assert_array_equal(examples.column("label"), stacked(rows, "label"))
        assert clients(examples) == WRITERS
    assert sources.train.class_names[:10] == tuple("0123456789")
    assert len(sources.train.class_names) == (10 if only_digits else 62)
    assert sources.test.mean == sources.train.mean


def test_shares_of_white_become_the_nearest_byte(tmp_path):
    shares = np.nextafter(np.arange(784, dtype=np.float32) % 256 / np.float32(255), np.float32(0)).reshape(28, 28)
    rows = [("f0000_14", {"pixels": shares, "label": np.int64(1)})]
    write_database(tmp_path / "emnist_all.sqlite", {"all_train": rows, "all_test": rows})
    image = TFFEMNIST(path=tmp_path, expect="any").load().train.column("image")
    assert image.reshape(-1).tolist() == [value % 256 for value in range(784)]


def test_examples_that_are_decoded_in_several_goes_keep_their_places(tmp_path, monkeypatch):
    write_database(tmp_path / "cifar100.sqlite", CIFAR)
    whole = TFFCIFAR100(path=tmp_path, expect="any").load().train
    monkeypatch.setattr("fedlens.data.sources.tff_files.TOGETHER", 3)
    assert TFFCIFAR100(path=tmp_path, expect="any").load().train.fingerprint() == whole.fingerprint()


def test_bright_ink_gives_the_negative_as_mnist_is(tmp_path):
    paper = np.ones((28, 28), dtype=np.float32)
    paper[3, 5] = 0  # ink
    rows = [("f0000_14", {"pixels": paper, "label": np.int64(1)})]
    write_database(tmp_path / "emnist_all.sqlite", {"all_train": rows, "all_test": rows})
    dark, bright = (TFFEMNIST(path=tmp_path, ink=ink, expect="any").load().train.column("image") for ink in ("dark", "bright"))
    assert (dark[0, 0, 0, 0], dark[0, 3, 5, 0]) == (255, 0)
    assert (bright[0, 0, 0, 0], bright[0, 3, 5, 0]) == (0, 255)


def test_celeba_divides_by_clients_or_by_examples_and_has_all_attributes_in_order(tmp_path):
    names = ["five_o_clock_shadow", *(name.lower() for name in ATTRIBUTES[1:])]

    def portraits(people: str) -> list[tuple[str, dict[str, np.ndarray]]]:
        attributes = GENERATOR.integers(0, 2, (len(people), 40))
        pictures = GENERATOR.integers(0, 256, (len(people), 84, 84, 3))
        return [(person, {"image": pictures[i], **dict(zip(names, attributes[i], strict=True))}) for i, person in enumerate(people)]

    kinds = [f"split_by_{kind}_{part}" for kind in ("clients", "examples") for part in ("train", "test")]
    rows = {kind: portraits(people) for kind, people in zip(kinds, ("112", "3", "123", "132"), strict=True)}
    write_database(tmp_path / "celeba.sqlite", rows)
    for kind in ("clients", "examples"):
        sources = TFFCelebA(path=tmp_path, split_by=kind, attribute="Male", expect="any").load()
        for examples, part in ((sources.train, "train"), (sources.test, "test")):
            own = rows[f"split_by_{kind}_{part}"]
            np.testing.assert_array_equal(examples.column("image"), stacked(own, "image"))
            np.testing.assert_array_equal(examples.column("label"), stacked(own, "male"))
            np.testing.assert_array_equal(examples.column("attributes"), np.stack([stacked(own, name) for name in names], axis=1))
            assert clients(examples) == [client for client, _ in own]
        assert sources.train.class_names == ("not Male", "Male")


def test_the_older_hdf5_holds_the_same_examples_client_after_client(tmp_path):
    write_database(tmp_path / "new" / "emnist_all.sqlite", EMNIST)
    for name, kind in (("fed_emnist", "all"), ("fed_emnist_digitsonly", "digits_only")):
        for part in ("train", "test"):
            write_hdf5(tmp_path / f"{name}_{part}.h5", EMNIST[f"{kind}_{part}"])
    for only_digits in (False, True):
        new, old = (TFFEMNIST(path=path, only_digits=only_digits, expect="any").load() for path in (tmp_path / "new", tmp_path))
        order = np.argsort(clients(new.train), kind="stable")
        for name in ("image", "label"):
            np.testing.assert_array_equal(old.train.column(name), new.train.column(name)[order])
        assert clients(old.train) == sorted(clients(new.train))


def test_the_older_hdf5_of_cifar_100_is_read(tmp_path):
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"fed_cifar100_{part}.h5", CIFAR[part])
    train = TFFCIFAR100(path=tmp_path, expect="any").load().train
    assert clients(train) == ["0", "0", "1", "1"]
    np.testing.assert_array_equal(train.column("label"), stacked([CIFAR["train"][k] for k in (0, 3, 1, 2)], "label"))


def test_a_packed_database_is_unpacked_for_as_long_as_it_is_read(tmp_path, monkeypatch):
    file = write_database(tmp_path / "cifar100.sqlite", CIFAR)
    expected = TFFCIFAR100(path=tmp_path, expect="any").load()
    packed = lzma.compress(file.read_bytes(), format=lzma.FORMAT_ALONE)
    file.unlink()
    (tmp_path / "cifar100.sqlite.lzma").write_bytes(packed)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    assert TFFCIFAR100(path=tmp_path, expect="any").load().train.fingerprint() == expected.train.fingerprint()
    assert list((tmp_path / "scratch").iterdir()) == []
    (tmp_path / "cifar100.sqlite.lzma").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"cifar100\.sqlite\.lzma cannot be unpacked .*truncated download"):
        TFFCIFAR100(path=tmp_path, expect="any").load()


def test_a_packed_database_that_finds_no_room_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "cifar100.sqlite.lzma").write_bytes(lzma.compress(b"content", format=lzma.FORMAT_ALONE))

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(ValueError, match=r"No space left.*set TMPDIR.*lzma --decompress --keep"):
        TFFCIFAR100(path=tmp_path).load()


def test_other_than_the_published_counts_are_refused_unless_they_are_expected(tmp_path):
    write_database(tmp_path / "cifar100.sqlite", CIFAR)
    with pytest.raises(ValueError, match=r"2 training clients instead of 500, 4 training examples instead of 50,000.*expect=any"):
        TFFCIFAR100(path=tmp_path).load()


@pytest.mark.parametrize(("source", "file"), [(TFFCIFAR100, "cifar100"), (TFFEMNIST, "emnist_all"), (TFFCelebA, "celeba")])
def test_missing_files_say_where_they_belong_and_where_they_come_from(tmp_path, source, file):
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: .*{file}\.sqlite\.lzma is missing \(get it from https:"):
        source(path=tmp_path).load()


def test_half_of_the_older_files_is_not_enough(tmp_path):
    write_hdf5(tmp_path / "fed_cifar100_train.h5", CIFAR["train"])
    with pytest.raises(FileNotFoundError, match=r"fed_cifar100_test\.h5 is missing"):
        TFFCIFAR100(path=tmp_path).load()


def test_a_torn_database_is_refused(tmp_path):
    file = write_database(tmp_path / "cifar100.sqlite", CIFAR)
    content = file.read_bytes()
    for torn in (content[: len(content) // 2], b"no database at all" * 100):
        file.write_bytes(torn)
        with pytest.raises(ValueError, match=r"cifar100\.sqlite cannot be read as TensorFlow Federated's database"):
            TFFCIFAR100(path=tmp_path, expect="any").load()


def test_features_of_unequal_length_in_an_older_file_are_refused(tmp_path):
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"fed_cifar100_{part}.h5", CIFAR[part])
    with h5py.File(tmp_path / "fed_cifar100_train.h5", "a") as file:
        del file["examples/1/label"]
        file["examples/1/label"] = np.arange(3)
    with pytest.raises(ValueError, match=r"fed_cifar100_train\.h5, client 1 cannot be read.*features of 2 and 3 examples"):
        TFFCIFAR100(path=tmp_path, expect="any").load()


def test_a_torn_hdf5_is_refused(tmp_path):
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"fed_cifar100_{part}.h5", CIFAR[part])
    file = tmp_path / "fed_cifar100_train.h5"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"fed_cifar100_train\.h5 cannot be read"):
        TFFCIFAR100(path=tmp_path, expect="any").load()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM examples WHERE rowid = 2", r"client 1 should have 2 examples; it has 1"),
        ("DELETE FROM client_metadata WHERE client_id = '1' AND split_name = 'train'", r"more than the 2 examples"),
        ("UPDATE client_metadata SET split_name = 'heldout'", r"has no split 'train'; it has: heldout"),
        (
            "UPDATE examples SET serialized_example_proto = x'0aff' WHERE rowid = 2",
            r"'train', example 1: no tf.train.Example",
        ),
        (
            "UPDATE examples SET serialized_example_proto = x'0b' WHERE rowid = 1",
            r"example 0: no tf.train.Example \(a field of type 3",
        ),
        ("UPDATE examples SET serialized_example_proto = x'' WHERE rowid = 3", r"example 2: no feature 'image'; it has: none"),
        ("UPDATE examples SET serialized_example_proto = NULL WHERE rowid = 3", r"example 2: no tf.train.Example"),
        ("DROP TABLE examples", r"cannot be read as TensorFlow Federated's database \(no such table"),
    ],
)
def test_wrong_content_of_a_database_is_refused_and_the_place_named(tmp_path, statement, message):
    file = write_database(tmp_path / "cifar100.sqlite", CIFAR)
    database = sqlite3.connect(file)
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(ValueError, match=message):
        TFFCIFAR100(path=tmp_path, expect="any").load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.full((32, 32, 3), 256)}, r"example 1: a pixel that does not lie in 0…255"),
        ({"image": np.zeros((32, 32), dtype=np.int64)}, r"example 1: 1024 values instead of 3072"),
        ({"image": np.full((32, 32, 3), np.nan, dtype=np.float32)}, r"'image' should be numbers"),
        ({"label": np.int64(100)}, r"labels must lie in 0…99; found 100"),
    ],
)
def test_wrong_values_are_refused(tmp_path, change, message):
    client, row = CIFAR["train"][1]
    rows = [CIFAR["train"][0], (client, row | change), *CIFAR["train"][2:]]
    write_database(tmp_path / "cifar100.sqlite", {"train": rows, "test": CIFAR["test"]})
    with pytest.raises(ValueError, match=message):
        TFFCIFAR100(path=tmp_path, expect="any").load()


@pytest.mark.parametrize("value", [1.01, -0.1, float("nan")])
def test_shares_of_ink_lie_between_0_and_1(tmp_path, value):
    rows = [("f0000_14", {"pixels": np.full((28, 28), value, dtype=np.float32), "label": np.int64(1)})]
    write_database(tmp_path / "emnist_all.sqlite", {"all_train": rows, "all_test": rows})
    with pytest.raises(ValueError, match=r"split 'all_train', example 0: a pixel that does not lie in 0…1"):
        TFFEMNIST(path=tmp_path, expect="any").load()


@given(
    rows=st.integers(1, 4),
    size=st.integers(1, 5),
    most=st.sampled_from([127, 128, 255, 2**14, 2**35, 2**62]),
    packed=st.booleans(),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_integers_of_any_length_are_decoded_together_as_one_by_one(rows, size, most, packed, data):
    values = np.array(
        data.draw(st.lists(st.lists(st.integers(0, most), min_size=size, max_size=size), min_size=rows, max_size=rows))
    )
    blocks = [features(example({"x": row}, packed))["x"] for row in values]
    assert {kind for kind, _ in blocks} == {3}
    np.testing.assert_array_equal(integers([block for _, block in blocks], size), values)


@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), packed=st.booleans())
@settings(max_examples=40, deadline=None)
def test_floats_are_decoded_bit_by_bit(values, packed):
    ((kind, stored),) = features(example({"x": np.array(values, dtype=np.float32)}, packed)).values()
    assert kind == 2
    assert floats([stored], len(values)).tobytes() == np.array([values], dtype=np.float32).tobytes()


def test_rows_of_other_lengths_whose_sum_is_right_are_found():
    with pytest.raises(Broken, match="1 values instead of 2") as caught:
        integers([bytes([1]), bytes([1, 2, 3])], 2)
    assert caught.value.place == 0
    with pytest.raises(Broken, match="3 values instead of 2") as caught:
        floats([bytes(8), bytes(12), bytes(4)], 2)
    assert caught.value.place == 1


@given(content=st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_the_reader_fail_in_an_unknown_way(content):
    with contextlib.suppress(ValueError):
        features(content)


@pytest.mark.parametrize("place", ["", "tff"])
@pytest.mark.parametrize(
    ("source", "file"),
    [
        (TFFCIFAR100, "cifar100.sqlite"),
        (TFFCIFAR100, "fed_cifar100_train.h5"),
        (TFFEMNIST, "emnist_all.sqlite.lzma"),
        (TFFEMNIST, "fed_emnist_train.h5"),
        (TFFCelebA, "celeba.sqlite.lzma"),
    ],
)
def test_the_files_are_there_where_they_are_read(tmp_path, place, source, file):
    (tmp_path / place).mkdir(exist_ok=True)
    for missing in (f"{file}.part", f"other/{file}"):  # of a download, or where nobody looks
        (tmp_path / place / missing).parent.mkdir(exist_ok=True)
        (tmp_path / place / missing).touch()
    assert not source.is_in(tmp_path)
    (tmp_path / place / file).touch()
    assert source.is_in(tmp_path)
