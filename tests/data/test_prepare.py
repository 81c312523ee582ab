"""Pictures decoded once, straight to where they are mapped from."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fedlens.data import Examples
from fedlens.data import prepare as prepared_by
from fedlens.data.listing import Listing
from fedlens.data.partitions import natural
from fedlens.data.prepare import Shape, Store, _made, decoded, prepare

COUNT = 70  # more than a turn, and no multiple of one
SHAPE = Shape(8)
USERS = np.array([f"user {row % 7}" for row in range(COUNT)])


@pytest.fixture
def files(tmp_path):
    """Pictures whose colour says which they are."""
    found = []
    for row in range(COUNT):
        found.append(tmp_path / f"{row:03}.png")
        Image.new("RGB", (12, 9), (row, 255 - row, 0)).save(found[-1])
    return found


def listing(files, **more) -> Listing:
    columns = {"label": np.arange(len(files)) % 3, "client": USERS[: len(files)]}
    names = ("one", "two", "three")
    return Listing(files, columns | more.pop("columns", {}), "colours", names, keys=[file.stem for file in files], **more)


def quiet(done: int) -> None:
    pass


def rows_of(examples: Examples) -> list[int]:
    image = examples.column("image")
    assert (image == image[:, :1, :1]).all()
    assert (image[:, 0, 0, 0].astype(int) + image[:, 0, 0, 1] == 255).all()
    return image[:, 0, 0, 0].tolist()


def names_of(examples: Examples) -> list[str]:
    return examples.categories["client"][examples.column("client")].tolist()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_prepared_folder_holds_every_row_in_its_place(tmp_path, files, threads):
    seen: list[int] = []
    assert prepare(listing(files), tmp_path / "to", SHAPE, "refuse", threads, seen.append) is None
    examples = Examples.open(tmp_path / "to")
    assert rows_of(examples) == list(range(COUNT))
    assert examples.column("label").tolist() == [row % 3 for row in range(COUNT)]
    assert names_of(examples) == USERS.tolist()
    assert examples.class_names == ("one", "two", "three")
    assert not examples.column("image").flags.owndata  # mapped
    assert seen == sorted(seen)
    assert seen[-1] == COUNT
    clients = natural(examples.column("client"), examples.categories["client"])
    assert list(clients.names) == [f"user {number}" for number in range(7)]
    assert rows_of(examples) == decoded_rows(files)


def decoded_rows(files) -> list[int]:
    return rows_of(decoded(listing(files), SHAPE, "refuse")[0])


def test_in_memory_and_on_disk_they_are_the_same(tmp_path, files):
    prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    assert Examples.open(tmp_path / "to").fingerprint() == decoded(listing(files), SHAPE, "refuse")[0].fingerprint()


def test_bad_pictures_are_counted_by_client_and_refused(tmp_path, files):
    files[3].unlink()
    files[10].unlink()
    files[50].write_bytes(b"no picture")
    expected = r"colours: 3 of 70 pictures cannot be used: 2 missing, 1 broken; 2 clients lack some \(user 3: 2, user 1: 1\)"
    for attempt in (
        lambda: prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet),
        lambda: decoded(listing(files), SHAPE, "refuse"),
    ):
        with pytest.raises(ValueError, match=expected) as error:
            attempt()
        assert "003: " in str(error.value)
        assert "050: " in str(error.value)
    assert not (tmp_path / "to" / "examples.json").exists()


@pytest.mark.parametrize("lost", [[0], [COUNT - 1], list(range(10, 60))])
def test_skipped_rows_leave_no_gap(tmp_path, files, lost):
    for row in lost:
        files[row].unlink()
    bad = prepare(listing(files), tmp_path / "to", SHAPE, "skip", 1, quiet)
    assert bad is not None
    assert sorted(int(reason[:3]) for reason in bad.reasons) == lost
    in_memory, same = decoded(listing(files), SHAPE, "skip")
    assert str(same) == str(bad)
    for examples in (Examples.open(tmp_path / "to"), in_memory):
        check_rows(examples, lost)
    assert in_memory.fingerprint() == Examples.open(tmp_path / "to").fingerprint()
    assert (tmp_path / "to" / "image.npy").stat().st_size < 128 + (COUNT - len(lost)) * 8 * 8 * 3 + 200


def check_rows(examples: Examples, lost: list[int]) -> None:
    """Every row that is there has its own label and client, and only the lost ones are not."""
    rows = rows_of(examples)
    assert sorted(rows) == [row for row in range(COUNT) if row not in lost]
    assert names_of(examples) == USERS[rows].tolist()
    assert examples.column("label").tolist() == [row % 3 for row in rows]


class Stop(Exception):
    """The power fails."""


@pytest.mark.parametrize("step", range(12))
def test_a_store_that_loses_power_while_it_is_finished_ends_as_if_it_had_not(tmp_path, files, monkeypatch, step):
    lost = [0, 5, 6, 41, 69]
    for row in lost:
        files[row].unlink()
    twice = listing(files, masks=[np.full((9, 12), row, dtype=np.uint8) for row in range(COUNT)])
    left = [step]

    def counted(function):
        def run(*arguments, **settings):
            if left[0] == 0:
                raise Stop
            left[0] -= 1
            return function(*arguments, **settings)

        return run

    monkeypatch.setattr("fedlens.data.prepare.MOVED", 1)
    with monkeypatch.context() as patch:
        for name in ("write_atomically", "write_array_header_1_0"):
            patch.setattr(f"fedlens.data.prepare.{name}", counted(getattr(prepared_by, name)))
        patch.setattr("fedlens.data.examples.write_atomically", counted(prepared_by.write_atomically))
        patch.setattr("numpy.save", counted(np.save))
        patch.setattr("numpy.memmap.flush", counted(np.memmap.flush))
        try:
            prepare(twice, tmp_path / "to", SHAPE, "skip", 1, quiet)
            assert step > 8  # all steps were taken
        except Stop:
            pass
    if step % 2:  # what was lost comes back in the meantime: what was decided stays
        before = (tmp_path / "to" / "order.npy").exists() or (tmp_path / "to" / "examples.json").exists()
        Image.new("RGB", (12, 9), (5, 250, 0)).save(files[5])
        lost = lost if before else [row for row in lost if row != 5]
    prepare(twice, tmp_path / "to", SHAPE, "skip", 1, quiet)
    found = Examples.open(tmp_path / "to")
    check_rows(found, lost)
    assert (found.column("mask") == np.array(rows_of(found))[:, None, None]).all()


def test_a_store_that_lacks_pictures_goes_on_saying_so(tmp_path, files):
    files[3].unlink()
    first = prepare(listing(files), tmp_path / "to", SHAPE, "skip", 1, quiet)
    assert str(prepare(listing(files), tmp_path / "to", SHAPE, "skip", 1, quiet)) == str(first)
    with pytest.raises(ValueError, match="was prepared without some pictures: 1 of 70 pictures cannot be used"):
        prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    said = json.loads((tmp_path / "to" / "skipped.json").read_text())
    assert said["clients"] == {"user 3": 1}
    assert said["reasons"][0].startswith("003: ")


def test_nothing_but_bad_pictures_is_refused_even_if_they_may_be_skipped(tmp_path, files):
    for file in files:
        file.unlink()
    with pytest.raises(ValueError, match="70 of 70 pictures cannot be used"):
        prepare(listing(files), tmp_path / "to", SHAPE, "skip", 1, quiet)


def test_what_was_interrupted_goes_on_and_what_was_repaired_is_read_again(tmp_path, files, monkeypatch):
    lost = files[40].read_bytes()
    files[40].unlink()

    def stop(done: int) -> None:
        if done >= 32:
            raise Stop

    with pytest.raises(Stop):
        prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, stop)
    for file in files[:32]:
        file.unlink()  # they need not be there any more
    with pytest.raises(ValueError, match="1 of 70 pictures"):
        prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    files[40].write_bytes(lost)
    seen: list[int] = []
    prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, seen.append)
    assert seen == [COUNT - 1, COUNT]
    assert rows_of(Examples.open(tmp_path / "to")) == list(range(COUNT))
    seen.clear()
    prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, seen.append)  # complete: nothing is decoded
    assert seen == [COUNT]


def test_another_preparation_is_not_mixed_in(tmp_path, files):
    prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    with pytest.raises(ValueError, match=r"was begun with other settings or files \(size\)"):
        prepare(listing(files), tmp_path / "to", Shape(9), "refuse", 1, quiet)
    with pytest.raises(ValueError, match=r"other settings or files \(listing\)"):
        prepare(listing(files, columns={"label": np.zeros(COUNT, int)}), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    Examples({"label": np.arange(3)}).save(tmp_path / "mine")
    with pytest.raises(ValueError, match="holds examples already"):
        prepare(listing(files), tmp_path / "mine", SHAPE, "refuse", 1, quiet)


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path, files, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(ValueError, match="are free; take a smaller size"):
        prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    assert not (tmp_path / "to" / "image.npy").exists()


def test_masks_and_boxes_go_where_the_picture_goes(tmp_path):
    mask = np.zeros((20, 40), dtype=np.uint8)
    mask[5:15, 15:25] = 4
    boxes = np.array([[[15, 5, 25, 15], [0, 0, 5, 5], [0, 0, 0, 0]]], dtype=np.float32)
    columns = {"boxes": boxes, "box_label": np.array([[4, 2, -1]])}
    one = Listing([np.repeat(mask[..., None] * 50, 3, axis=2)], columns, "one", masks=[mask])
    prepare(one, tmp_path / "to", Shape(10), "refuse", 1, quiet)
    found = Examples.open(tmp_path / "to")
    left, top, right, bottom = found.column("boxes")[0, 0]
    assert (left, top, right, bottom) == (2.5, 2.5, 7.5, 7.5)
    assert found.column("box_label")[0].tolist() == [4, -1, -1]  # the second lay in what was cut away
    assert (found.column("mask")[0, 3:7, 3:7] == 4).all()
    assert (found.column("mask")[0, :2] == 0).all()


def test_what_was_drawn_on_a_picture_belongs_to_it_as_it_is_stored(tmp_path):
    """A camera's tag turns pictures, but not those that have masks or boxes; and those have to be of its size."""
    wide, tags = np.zeros((20, 40, 3), dtype=np.uint8), Image.Exif()
    wide[:, :20] = 255
    tags[0x0112] = 6
    Image.fromarray(wide).save(tmp_path / "lying.png", exif=tags)
    place, mask = tmp_path / "lying.png", np.zeros((20, 40), dtype=np.uint8)
    alone, _ = decoded(Listing([place], {}, "one"), Shape(8, "stretch"), "refuse")
    with_mask, _ = decoded(Listing([place], {}, "one", masks=[mask]), Shape(8, "stretch"), "refuse")
    assert (alone.column("image")[0, :3] == 255).all()
    assert (with_mask.column("image")[0, :, :3] == 255).all()
    for more, said in (
        ({"masks": [mask.T]}, "the mask a picture is 20 × 40, and its picture 40 × 20"),
        ({"sizes": np.array([[80, 40]])}, "what is said of it is 80 × 40, and its picture 40 × 20"),
    ):
        with pytest.raises(ValueError, match=said):
            decoded(Listing([place], {}, "one", **more), Shape(8), "refuse")


def test_the_facts_of_a_folder_are_plain(tmp_path, files):
    prepare(listing(files), tmp_path / "to", SHAPE, "refuse", 1, quiet)
    assert json.loads((tmp_path / "to" / "preparation.json").read_text())["size"] == 8
    assert not (tmp_path / "to" / "status.npy").exists()
    store = Store(tmp_path / "to", _made(listing(files), SHAPE))
    assert store.begin(json.loads((tmp_path / "to" / "preparation.json").read_text())).reasons == []


def test_pictures_and_columns_of_different_lengths_are_refused(files):
    with pytest.raises(ValueError, match="must be equally long"):
        Listing(files, {"label": np.zeros(3)}, "uneven")
