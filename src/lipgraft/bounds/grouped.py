"""Products of rows with a matrix that each row shares with the others of its group.

On a GPU rows are sorted into blocks of equal size, so that shapes depend on nothing but the numbers of rows and of
groups, and one batched product does them all. It needs a copy of the matrix for every block, which takes a CPU longer
than the product. There, each group has a product of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 32  # rows of a block


@dataclass(frozen=True, eq=False)
class Grouped:
    """B rows in G groups.

    group: (B,), each row's; member: (B,), whether it has one: others count for the last group.
    rows: the row at each place, and place: (B,), of each row among all places. None: there are equally many rows of
        each group, in order.
    owner: (K,), the group of each block, where rows are in blocks, (K, SIZE), with B for none.
    counts: of rows in each group, where they are sorted by group, (B,).
    """

    group: Tensor
    member: Tensor
    rows: Tensor | None = None
    owner: Tensor | None = None
    place: Tensor | None = None
    counts: tuple[int, ...] = ()

    @staticmethod
    def even(groups: int, each: int, device: torch.device) -> Grouped:
        """`each` rows of every group, in order."""
        group = torch.arange(groups, device=device).repeat_interleave(each)
        return Grouped(group, torch.ones_like(group, dtype=torch.bool))

    @staticmethod
    def of(group: Tensor, groups: int, *, blocks: bool | None = None) -> Grouped:
        """group: (B,), `groups` for rows that have none. blocks: whether rows are sorted into them, by default on a
        GPU."""
        member, group = group < groups, group.clamp(max=groups - 1)
        if groups == 1:
            return Grouped(group, member)
        batch, everyone = len(group), torch.arange(len(group), device=group.device)
        count = group.new_zeros(groups).scatter_add(0, group, torch.ones_like(group))
        order = torch.argsort(group, stable=True)
        in_blocks = group.device.type != "cpu" if blocks is None else blocks
        if not in_blocks:
            place = torch.empty_like(order).scatter(0, order, everyone)
            return Grouped(group, member, order, place=place, counts=tuple(count.tolist()))
        full = (count + (SIZE - 1)) // SIZE
        ends = full.cumsum(0)
        total = -(-batch // SIZE) + groups  # as many as there can be: a device is not waited for
        before = count.cumsum(0) - count
        rank = torch.zeros_like(group).scatter(0, order, everyone - before[group[order]])
        place = (ends - full)[group] * SIZE + rank
        rows = torch.full((total * SIZE,), batch, device=group.device).scatter(0, place, everyone)
        owner = torch.searchsorted(ends, torch.arange(total, device=group.device), right=True).clamp(max=groups - 1)
        return Grouped(group, member, rows.view(total, SIZE), owner, place)

    def product(self, rows: Tensor, table: Tensor) -> Tensor:
        """rows: (B, U); table: (G, U, n) -> (B, n)."""
        if self.rows is None or self.place is None:
            return (rows.view(len(table), -1, rows.shape[1]) @ table).flatten(0, 1)
        if self.owner is None:
            parts = torch.split(rows[self.rows], list(self.counts))
            return torch.cat([part @ one for part, one in zip(parts, table, strict=True)])[self.place]
        blocks = F.pad(rows, (0, 0, 0, 1))[self.rows]
        return torch.bmm(blocks, table[self.owner]).flatten(0, 1)[self.place]
