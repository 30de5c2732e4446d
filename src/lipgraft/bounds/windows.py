"""Tensor work on windows: cut them out of a layer, mask them, move them, spread them over the layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.network.window import Pair, Window, channels_last


def cut(layer: Tensor, window: Window, grid: Pair, *, last: bool = False) -> Tensor:
    """The window of every grid place, zero outside the layer: (B, C, H, W) -> (B, places, C * rows * columns).

    last: in the order rows, columns, channels.
    """
    height, width = layer.shape[2:]
    (rows, columns), (down, right), (y0, x0) = window.size, window.stride, window.offset
    bottom = (grid[0] - 1) * down + y0 + rows - height
    after = (grid[1] - 1) * right + x0 + columns - width
    padded = F.pad(layer, (-x0, max(after, 0), -y0, max(bottom, 0))).contiguous()
    b, c, h, w = padded.stride()
    places = padded.as_strided(
        (len(layer), *grid, layer.shape[1], rows, columns), (b, down * h, right * w, c, h, w), padded.storage_offset()
    )
    return (places.movedim(3, -1) if last else places).reshape(len(layer), grid[0] * grid[1], -1)


def flattened(block: Tensor, first: int, like: Tensor) -> Tensor:
    """The axes from `first` on as one, in the order that `like` has in memory: without a copy if both have it."""
    return (block.movedim(-3, -1) if channels_last(like) else block).flatten(first)


def pick(places: Tensor, place: Tensor) -> Tensor:
    """The windows of these places: (B or 1, P, K), place (B, S) -> (B, 1, S, K)."""
    batch, count = place.shape
    flat = place
    if len(places) > 1 or batch == 1:
        flat = place + torch.arange(batch, device=place.device).unsqueeze(1) * places.shape[1]
    return places.reshape(-1, places.shape[-1]).index_select(0, flat.reshape(-1)).view(batch, 1, count, -1)


def inside(shape: Pair, window: Window, grid: Pair, place: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where a window's element lies in the layer, 0 where it hangs over the edge: (B, 1, S, 1, rows, columns)."""
    ones = torch.ones(1, 1, *shape, dtype=dtype, device=place.device)
    mask = pick(cut(ones, window, grid).expand(len(place), -1, -1), place)
    return mask.view(*mask.shape[:3], 1, *window.size)


def widen(rows: Tensor, window: Window, to: Window) -> Tensor:
    """The same rows on a larger window of the same stride."""
    if window == to:
        return rows
    top, left = window.offset[0] - to.offset[0], window.offset[1] - to.offset[1]
    bottom, right = to.size[0] - window.size[0] - top, to.size[1] - window.size[1] - left
    return F.pad(rows, (left, right, top, bottom))


def spread(rows: Tensor, window: Window, shape: Pair, grid: Pair, place: Tensor) -> Tensor:
    """Rows on windows -> rows on all of the layer: (B, G, S, C, rows, columns) -> (B, G, S, C, H, W).

    Every element of the layer looks up its place in the window, or a zero kept behind the window's end.
    """
    device = rows.device
    y = torch.arange(shape[0], device=device) - ((place // grid[1]) * window.stride[0] + window.offset[0]).unsqueeze(-1)
    x = torch.arange(shape[1], device=device) - ((place % grid[1]) * window.stride[1] + window.offset[1]).unsqueeze(-1)
    ok_y, ok_x = (y >= 0) & (y < window.size[0]), (x >= 0) & (x < window.size[1])
    index = y.unsqueeze(-1) * window.size[1] + x.unsqueeze(-2)
    index = torch.where(ok_y.unsqueeze(-1) & ok_x.unsqueeze(-2), index, window.area())
    batch, groups, count, channels = rows.shape[:4]
    index = index.view(batch, 1, count, 1, -1).expand(batch, groups, count, channels, -1)
    padded = F.pad(rows.reshape(batch, groups, count, channels, -1), (0, 1))
    return padded.gather(-1, index).view(batch, groups, count, channels, *shape)
