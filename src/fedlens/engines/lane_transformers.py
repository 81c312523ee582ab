"""Vision transformers in lanes: attention knows no weights, only its projections and the learnt tokens belong to a lane."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.vision_transformer import Encoder, VisionTransformer

from fedlens.engines.lane_functions import lane_linear, per_image


class LaneMultiheadAttention(nn.MultiheadAttention):
    """Self-attention of each image, without masks: softmax(q kᵀ / √d) v."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = True, **rest: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        plain = query is key and key is value and self.batch_first and not need_weights and not any(rest.values())
        if not plain or self.in_proj_weight is None or self.bias_k is not None or self.add_zero_attn:
            raise NotImplementedError("attention with masks, or between different images, is not vectorised; use engine=sequential")
        projected = lane_linear(query, self.in_proj_weight, self.in_proj_bias)  # [N, T, 3 D]
        heads = (piece.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for piece in projected.chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)  # [N, heads, T, d] → [N, T, D]
        return lane_linear(y, self.out_proj.weight, self.out_proj.bias), None


class LaneVisionTransformer(VisionTransformer):
    """Torchvision's network, with a class token of each lane."""

    def forward(self, x: Tensor) -> Tensor:
        x = self._process_input(x)
        token = per_image(self.class_token.squeeze(-3), 2, x).expand(len(x), -1, -1)
        return self.heads(self.encoder(torch.cat([token, x], dim=1))[:, 0])


class LaneEncoder(Encoder):
    """Its encoder, with embedded positions of each lane."""

    def forward(self, input: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(input + per_image(self.pos_embedding.squeeze(-3), 2, input))))
