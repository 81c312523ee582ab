"""Models by name, and the surgery that federated learning needs on them."""

from fedlens.models import cnn, vision  # they register their models
from fedlens.models.create import MODELS, create_model
from fedlens.models.dropout import KeyedDropout, dropout_keys, keyed_dropout_, set_dropout_key
from fedlens.models.pretrained import Loaded, load_pretrained
from fedlens.models.surgery import FrozenBatchNorm, find_head, freeze, replace_batch_norm, replace_head

__all__ = [
    "MODELS",
    "FrozenBatchNorm",
    "KeyedDropout",
    "Loaded",
    "cnn",
    "create_model",
    "dropout_keys",
    "find_head",
    "freeze",
    "keyed_dropout_",
    "load_pretrained",
    "replace_batch_norm",
    "replace_head",
    "set_dropout_key",
    "vision",
]
