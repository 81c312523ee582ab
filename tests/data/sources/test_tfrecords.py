"""TFRecord files of one client each, written by other libraries' writers where there are any."""

from __future__ import annotations

import io
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from fedlens.data import Examples, Natural
from fedlens.data.prepare import Shape, prepare
from fedlens.data.sources import protobuf
from fedlens.data.sources.tfrecords import TFRecords, masked_crc


def message_of_tensorflow(packed: bool):
    """The class tf.train.Example, made of its definition by Google's own library."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"example_{packed}.proto", package=f"of{packed}", syntax="proto3")

    def message(name: str, *members: tuple[str, int, int, str, bool]):
        made = file.message_type.add(name=name)
        for member, number, kind, type_name, repeated in members:
            field = made.field.add(name=member, number=number, type=kind)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if type_name:
                field.type_name = f".of{packed}.{type_name}"
            elif kind in (kinds.TYPE_INT64, kinds.TYPE_FLOAT):
                field.options.packed = packed
        return made

    message("BytesList", ("value", 1, kinds.TYPE_BYTES, "", True))
    message("FloatList", ("value", 1, kinds.TYPE_FLOAT, "", True))
    message("Int64List", ("value", 1, kinds.TYPE_INT64, "", True))
    lists = (("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List"))
    message("Feature", *((name, number, kinds.TYPE_MESSAGE, kind, False) for name, number, kind in lists))
    features = message("Features", ("feature", 1, kinds.TYPE_MESSAGE, "Features.FeatureEntry", True))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=f".of{packed}.Feature")
    message("Example", ("features", 1, kinds.TYPE_MESSAGE, "Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"of{packed}.Example"))


EXAMPLE = {packed: message_of_tensorflow(packed) for packed in (True, False)}


def example(picture: bytes, label: int, packed: bool = True) -> bytes:
    made = EXAMPLE[packed]()
    made.features.feature["image/encoded_jpeg"].bytes_list.value.append(picture)
    made.features.feature["class"].int64_list.value.append(label)
    made.features.feature["weight"].float_list.value.extend([0.5, 2.0])
    return made.SerializeToString()


def jpeg(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), (grey, grey, grey)).save(file, "JPEG", quality=95)
    return file.getvalue()


def write(path: Path, *records: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record)
        writer.flush()


CLIENTS = {"10": [(10, 2), (20, 0)], "2": [(30, 1)], "300": [(40, 0), (50, 2), (60, 1)]}  # grey, class


@pytest.fixture
def cache(tmp_path) -> Path:
    for client, rows in CLIENTS.items():
        write(tmp_path / "gld23k" / "train" / client, *(example(jpeg(grey), label) for grey, label in rows))
    write(tmp_path / "gld23k" / "test.tfRecord", example(jpeg(70), 3), example(jpeg(80), 0))
    return tmp_path / "gld23k"


def greys(examples: Examples) -> np.ndarray:
    return examples.column("image").mean(axis=(1, 2, 3)).round(-1).astype(int)


def test_each_file_is_a_client(cache):
    sources = TFRecords(path=cache, size=8).load()
    clients = Natural().assign(sources.train, 0)
    assert [clients.client_name(k) for k in range(len(clients))] == ["2", "10", "300"]
    for k in range(len(clients)):
        rows = clients.of_client(k)
        found = list(zip(greys(sources.train)[rows].tolist(), sources.train.column("label")[rows].tolist(), strict=True))
        assert found == CLIENTS[clients.client_name(k)]
    assert (greys(sources.test).tolist(), sources.test.column("label").tolist()) == ([70, 80], [3, 0])
    assert sources.train.class_names == sources.test.class_names == ("0", "1", "2", "3")


def test_the_test_may_lie_in_a_folder_of_its_own(cache):
    (cache / "test").mkdir()
    (cache / "test.tfRecord").rename(cache / "test" / "test.tfRecord")
    assert len(TFRecords(path=cache).listings()["test"]) == 2
    (cache / "test" / "test.tfRecord").unlink()
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {cache}/test.tfRecord is missing"):
        TFRecords(path=cache).listings()


def test_pictures_are_read_when_they_are_wanted_by_whoever_wants_them(cache):
    pictures = TFRecords(path=cache).listings()["train"].pictures
    expected = [jpeg(grey) for client in sorted(CLIENTS) for grey, _ in CLIENTS[client]]
    assert list(pictures) == expected
    assert list(pickle.loads(pickle.dumps(pictures))) == expected
    assert list(pictures[1::2]) == expected[1::2]
    assert len(pickle.dumps(pictures)) < len(b"".join(expected))


def test_names_of_clients_may_be_anything(cache):
    (cache / "train" / "2").rename(cache / "train" / "80c")
    (cache / "train" / ".DS_Store").write_bytes(b"x")
    (cache / "train" / "empty").write_bytes(b"")
    examples = TFRecords(path=cache, size=8).load().train
    assert sorted(Natural().assign(examples, 0).names) == ["10", "300", "80c"]


def test_broken_pictures_are_counted_for_each_client(cache, tmp_path):
    write(cache / "train" / "10", example(jpeg(10), 2), example(b"", 0), example(b"no picture", 1))
    bad = prepare(TFRecords(path=cache).listings()["train"], tmp_path / "packed", Shape(8), "skip", 1, lambda done: None)
    assert bad.clients == {"10": 2}
    assert f"{cache}/train/10, byte " in str(bad)


def test_there_have_to_be_clients(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {tmp_path}/train is missing or empty"):
        TFRecords(path=tmp_path).listings()
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {tmp_path}/train is missing or empty"):
        TFRecords(path=tmp_path).listings()


def test_files_that_are_torn_or_none_are_named(cache):
    path = cache / "train" / "300"
    content = path.read_bytes()
    for length in (5, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=rf"{path}.*(truncated|is it one)\?"):
            TFRecords(path=cache).listings()
    path.write_bytes(content + b"\0" * 20)
    with pytest.raises(ValueError, match=rf"{path}, byte {len(content)}: no record of a TFRecord file begins there"):
        TFRecords(path=cache).listings()
    path.write_bytes(jpeg(3))
    with pytest.raises(ValueError, match=rf"{path}, byte 0: no record of a TFRecord file begins there: is it one\?"):
        TFRecords(path=cache).listings()


def features(**values: bytes) -> bytes:
    """An Example whose features have these contents, whatever they are."""
    made = EXAMPLE[True]()
    for name, value in values.items():
        made.features.feature[name].ParseFromString(value)
    return made.SerializeToString()


PICTURE, ONE = b"\n\x03\n\x01x", b"\x1a\x03\n\x01\x01"  # a list of bytes, and of whole numbers, of one value each
RECORDS = {
    "no class": (features(**{"image/encoded_jpeg": PICTURE}), "a record without the feature 'class'; it has: image/encoded_jpeg"),
    "no features": (b"", "a record without the feature 'image/encoded_jpeg'; it has: none"),
    "a number for a picture": (features(**{"image/encoded_jpeg": ONE, "class": ONE}), "not one value of bytes"),
    "a picture for a number": (features(**{"image/encoded_jpeg": PICTURE, "class": PICTURE}), "not one whole number"),
    "two classes": (features(**{"image/encoded_jpeg": PICTURE, "class": b"\x1a\x04\n\x02\x01\x02"}), "not one whole number"),
    "no Example": (b"\xff" * 30, "a number does not end"),
    "a field that is too long": (b"\n\x7fabc", "a field ends behind its message"),
    "an odd type": (b"\x0fabc", "a field of type 7"),
    "a negative class": (example(b"x", -1), "classes should be 0, 1, …; one is -1"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_that_are_no_pictures_with_a_class_are_named(cache, what):
    record, message = RECORDS[what]
    write(cache / "train" / "10", example(jpeg(10), 2), record)
    with pytest.raises(ValueError, match=f"{cache}/train/10.*{message}"):
        TFRecords(path=cache).listings()


@given(st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1), st.booleans())
@settings(max_examples=80, deadline=None)
def test_examples_are_understood_as_by_googles_own_library(picture, label, packed):
    content = b"before" + (record := example(picture, label, packed)) + b"behind"
    found = protobuf.features(content, 6, 6 + len(record))
    assert found.keys() == {"image/encoded_jpeg", "class", "weight"}
    start, stop = protobuf.only_bytes(content, found["image/encoded_jpeg"])
    assert content[start:stop] == picture
    assert protobuf.only_integer(content, found["class"]) == label


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_rubbish_is_an_error_and_never_anything_else(content):
    with suppress(ValueError):
        protobuf.features(content, 0, len(content))


def test_fields_that_are_not_asked_for_are_passed_over():
    content = b"\x09" + struct.pack("<d", 1.5) + b"\x15" + struct.pack("<f", 1.5) + b"\x18\x96\x01" + b"\x22\x02ab"
    found = list(protobuf.fields(content, 0, len(content)))
    assert [(field.number, content[field.start : field.stop][-2:]) for field in found][2:] == [(3, b"\x96\x01"), (4, b"ab")]
    assert [field.stop - field.start for field in found] == [8, 4, 2, 2]
    assert protobuf.varint(content, found[2].start) == (150, found[2].stop)


@given(st.binary(max_size=40))
@settings(max_examples=50, deadline=None)
def test_checksums_are_tensorboards(content):
    assert masked_crc(content) == masked_crc32c(content)
