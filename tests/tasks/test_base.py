"""How images are made ready, and what every task refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlens.registry import BadSettings
from fedlens.tasks import TASKS, TRANSFORMS, Facts
from fedlens.tasks.base import prepare_images
from fedlens.tasks.transforms import CenterCrop, HorizontalFlip, RandomCrop

RANDOM = {"horizontal_flip": {}, "vertical_flip": {}, "random_crop": {"size": 3}, "random_resized_crop": {"size": 3}}
FACTS = Facts(2, ("a", "b"), (0.5, 0.25, 0.1), (0.5, 0.2, 1.0))


def batch(count: int = 4) -> dict[str, torch.Tensor]:
    image = np.random.default_rng(0).integers(0, 256, (count, 5, 6, 3), dtype=np.uint8)
    return {"image": torch.from_numpy(image)}


def test_images_are_normalised_channel_by_channel():
    """(v / 255 − mean) / standard deviation, channels first."""
    images = batch()
    expected = (images["image"].numpy() / 255 - np.array(FACTS.mean)) / np.array(FACTS.standard_deviation)
    prepared = prepare_images(images, FACTS, (), None)
    assert prepared.dtype == torch.float32
    np.testing.assert_allclose(prepared.numpy(), expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-5)


def test_black_and_white_have_the_values_of_the_closed_form():
    images = {"image": torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 1, 1, 3)}
    prepared = prepare_images(images, FACTS, (), None)[:, :, 0, 0]
    torch.testing.assert_close(prepared, torch.tensor([[-1.0, -1.25, -0.1], [1.0, 3.75, 0.9]]))


def test_transforms_come_one_after_another_before_normalisation_each_with_its_own_draws():
    images, uniform = batch(), torch.tensor([[0.1, 0.9, 0.2], [0.9, 0.1, 0.7], [0.4, 0.5, 0.99], [0.6, 0.0, 0.5]])
    flip, crop, middle = HorizontalFlip(), RandomCrop(size=4, padding=1), CenterCrop(size=2)
    changed = flip.apply(images["image"].permute(0, 3, 1, 2).float(), uniform[:, :1])
    changed = middle.apply(crop.apply(changed, uniform[:, 1:]), uniform[:, :0])
    expected = prepare_images({"image": changed.permute(0, 2, 3, 1)}, FACTS, (), None)
    assert torch.equal(prepare_images(images, FACTS, (flip, crop, middle), uniform), expected)


def test_the_data_are_not_changed_by_making_them_ready():
    images = batch()
    before = images["image"].clone()
    prepare_images(images, FACTS, (HorizontalFlip(probability=1),), torch.zeros(4, 1)).zero_()
    assert torch.equal(images["image"], before)


def test_the_random_transforms_are_known_here():
    assert set(RANDOM) == {entry.name for entry in TRANSFORMS if entry.part.draws}


@pytest.mark.parametrize("name", sorted(RANDOM))
@pytest.mark.parametrize("task", [entry.name for entry in TASKS])
def test_evaluation_is_never_random(task, name):
    random, fixed = {"name": name, **RANDOM[name]}, {"name": "resize", "size": 2}
    accepted = TASKS.build({"name": task, "train_transforms": [random, fixed], "evaluation_transforms": [fixed]})
    assert [transform.name for transform in accepted.train_transforms] == [name, "resize"]
    with pytest.raises(BadSettings, match=f"evaluation must not be random, and {name} is"):
        TASKS.build({"name": task, "evaluation_transforms": [fixed, random]})
