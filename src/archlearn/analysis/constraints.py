"""Ties between channels and channels that must stay, collected by union-find.

Every index of every dimension of every parameter is an atom. Atoms tied to one another form a
channel: it stays or goes as one.
"""

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    Labels,
    along,
    core,
    flat_pairs,
    plane_along,
    pointwise,
    select,
    varying,
    where_varying,
    without_repeats,
)
from archlearn.module_utils import find_tensor, first_names, sharing_layers


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a channel must stay, and what its owner can do about it, or '' where nothing helps."""

    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.text}; {self.fix}" if self.fix else self.text


@dataclass(frozen=True, slots=True)
class Block:
    """Atoms that must stay, and why."""

    ids: Tensor
    reason: Reason


@dataclass(slots=True)
class ChannelConstraints:
    """What has been learnt about atoms so far.

    Attributes:
        dims: The atoms of a parameter's dimension, by name and dimension.
        elements: The atoms of each element of a parameter that is used as it is.
        boxes: Tensors of which parts are taken along one of several dimensions with channels, each
            with the name of the call.
        spreads: Channels along several dimensions, and what is broadcast along some of these.
        grids: Atoms that go with either of two others: those of a head, or of a group of a
            convolution, with it or with their place within all of them. Vectors of equal length.
        matrices: The rows and columns of those grids whose atoms no parameter has, by the first
            atom of each: a layer that is applied to every channel beside (MLP-Mixer).
        head_grids: Heads of queries, each of which goes with the head of keys and values that it
            shares with others, or with its place among those. Rows of `grids` may be such heads.
        copies: Calls that repeat keys or values for every head of queries, each of which may go
            with its copy.
        copied: The atoms of what those return.
        hints: Why atoms may be tied to something fixed, should they be.
        opaque_uses: Parameters that something unknown reads.
        names: The first name of each parameter and buffer, by all its names.
        sharing: Layers with a parameter that another module holds, too.
        whole_groups: Of each call with groups, whether it loses whole ones or parts of each and,
            with `/2` behind its name, whether both. In a network that shrinks it goes on as it
            began.
    """

    net: nn.Module
    n_atoms: int = 1
    dims: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    elements: dict[str, Tensor] = field(default_factory=dict)
    ties: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    boxes: list[tuple[str, Labels]] = field(default_factory=list)
    spreads: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    grids: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    matrices: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    head_grids: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    copies: set[str] = field(default_factory=set)
    copied: list[Tensor] = field(default_factory=list)
    hints: list[Block] = field(default_factory=list)
    opaque_uses: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    sharing: frozenset[str] = frozenset()
    whole_groups: dict[str, bool] = field(default_factory=dict)
    _root: Tensor = field(default_factory=lambda: torch.arange(1, device="cpu"))
    _n_joined: int = 0

    def __post_init__(self) -> None:
        self.names = first_names(self.net)
        self.sharing = sharing_layers(self.net)

    def new_atoms(self, n: int) -> Tensor:
        """Return `n` atoms that nothing is tied to yet."""
        first, self.n_atoms = self.n_atoms, self.n_atoms + n
        return torch.arange(first, first + n, device="cpu")

    def tie(self, first: Tensor, second: Tensor) -> None:
        """Record that elements at the same place stay or go together."""
        pairs = flat_pairs(first, second)
        if not torch.equal(*pairs):
            self.ties.append(pairs)

    def block(self, ids: Tensor, text: str, fix: str = "") -> None:
        """Record that these atoms must stay."""
        self.blocks += _blocks(ids, Reason(text, fix))

    def hint(self, ids: Tensor, reason: Reason) -> None:
        """Record why these atoms would be tied to something fixed, where they are."""
        self.hints += _blocks(ids, reason)

    def canonical(self, name: str) -> str:
        """Return the first name of a parameter that may have several (tied weights)."""
        return self.names.get(name, name)

    def dim(self, name: str, dim: int) -> Tensor:
        """Return the atoms of a parameter's dimension."""
        name = self.canonical(name)
        if (name, dim) not in self.dims:
            self.dims[name, dim] = self.new_atoms(find_tensor(self.net, name).shape[dim])
        return self.dims[name, dim]

    def tie_dim(self, name: str, dim: int, ids: Tensor, part: slice = slice(None)) -> None:
        """Record that a parameter's dimension, or a part of it, stays or goes with other atoms.

        If nothing is known of that dimension yet, those are its atoms from now on.
        """
        name = self.canonical(name)
        earlier = self.dims.get((name, dim))
        if earlier is None and find_tensor(self.net, name).shape[dim] == len(ids):
            self.dims[name, dim] = ids
        else:
            self.tie(self.dim(name, dim)[part], ids)

    def raw(self, name: str) -> Labels:
        """Return labels of a parameter or buffer that `forward` uses as it is."""
        name = self.canonical(name)
        tensor = find_tensor(self.net, name)
        wide = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        if len(wide) == 1:
            ids = self.dim(name, wide[0])
            labels = along(ids, torch.full_like(ids, CONSTANT), tensor.shape, wide[0])
        else:
            if name not in self.elements:
                self.elements[name] = self.new_atoms(tensor.numel()).reshape(tensor.shape)
            ids = self.elements[name]
            state = CONSTANT if tensor.numel() == 1 else UNKNOWN
            labels = Labels(ids, torch.full_like(ids, state))
        return Labels(labels.ids, labels.state, name)

    def read(self, labels: Labels, dim: int) -> tuple[Tensor, Tensor]:
        """Return atom and state for each index of a dimension, tying what shares an index."""
        ids, state = core(labels.ids, labels.state, dim)
        if len(ids) == 1:
            return ids[0], state[0]
        self.tie(ids[:1].expand_as(ids), ids)
        return ids[0], state.amax(0)

    def read_heads(self, labels: Labels, dim: int) -> tuple[Tensor, Tensor]:
        """Return atom and state for each head; copies for heads go with their head alone then."""
        within = [other for other in varying(labels.ids) if other != dim]
        unique = without_repeats(labels.ids)
        is_copy = any(bool(torch.isin(unique, cells).all()) for cells in self.copied)
        if len(within) != 1 or not is_copy:
            return self.read(labels, dim)
        cells, state = (plane_along(x, (dim, within[0])) for x in (labels.ids, labels.state))
        rows = self.new_atoms(len(cells))
        self.note_grid(cells, rows, torch.full((cells.shape[1],), FIXED, device="cpu"))
        return rows, state.amax(1)

    def note_grid(self, cells: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Record that each element of a matrix goes where its row goes, or its column."""
        self.grids.append(_as_grid(cells, rows, columns))

    def copy_for_heads(self, labels: Labels, dim: int, n: int) -> Labels:
        """Return labels of keys or values that are repeated for heads, as by `repeat_interleave`.

        A copy goes with its place among all copies, or with what it is a copy of. Where that has
        heads itself, copies of these are heads, too, in which channels go with their head or with
        their place within all heads.
        """
        varied, dims = where_varying(labels.ids), varying(labels.ids)
        places = self.new_atoms(n)
        copies = self.new_atoms(n * varied.numel()).view(n, *varied.shape)
        source, cells = varied.reshape(varied.shape[dims[0]], -1), copies.flatten(1)
        if len(dims) > 1:
            groups, columns = map(self.new_atoms, source.shape)
            heads = self.new_atoms(n * len(groups)).view(n, -1)
            self.note_grid(source, groups, columns)
            self.note_grid(cells.view(heads.numel(), -1), heads.view(-1), columns)
            self.head_grids.append(_as_grid(heads.T, groups, places))
        elif dims[0] <= dim:
            self.head_grids.append(_as_grid(cells.T, source.view(-1), places))
        else:  # one head for all
            self.note_grid(cells, places, source.view(-1))
        self.copied.append(cells)
        repeated = torch.arange(labels.shape[dim], device="cpu").repeat_interleave(n)
        state = select(labels.state, dim, repeated)
        return Labels(copies.movedim(0, dim + 1).flatten(dim, dim + 1).expand_as(state), state)

    def new_matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return new atoms, each of which goes where its row goes, or its column."""
        cells = self.new_atoms(len(rows) * len(columns)).reshape(len(rows), len(columns))
        self.matrices[int(cells[0, 0])] = rows, columns
        self.note_grid(cells, rows, columns)
        return cells

    def lines_of(self, ids: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return row and column of each atom, or None unless all are of matrices."""
        if not self.matrices or not ids.numel() or int(ids.min()) < min(self.matrices):
            return None
        rows, columns = (pointwise(partial(self._find_lines, side), ids) for side in (0, 1))
        return None if bool((rows < 0).any()) else (rows, columns)

    def _find_lines(self, side: int, ids: Tensor) -> Tensor:
        """Return the row, or the column, of each atom; -1 for those of no matrix."""
        starts = list(self.matrices)
        low, high = (bisect(starts, int(atom)) for atom in torch.aminmax(ids))
        lines = torch.full_like(ids, -1)
        for start in starts[low - 1 : high]:
            n_rows, n_columns = map(len, self.matrices[start])
            is_own = (ids >= start) & (ids < start + n_rows * n_columns)
            cell = torch.where(is_own, ids - start, 0)
            line = cell % n_columns if side else cell // n_columns
            lines = torch.where(is_own, self.matrices[start][side][line], lines)
        return lines

    def tie_grids(self) -> None:
        """Tie rows, and columns, of elements that stay or go together; keep those of what stays."""
        self._tie_lines(self.grids, [])
        self._tie_lines(self.head_grids, self.grids)

    def _tie_lines(
        self,
        grids: list[tuple[Tensor, Tensor, Tensor]],
        below: list[tuple[Tensor, Tensor, Tensor]],
    ) -> None:
        """Do so in some grids, the elements of which may be rows of those below."""
        if not grids:
            return
        cells, rows, columns = map(torch.cat, zip(*grids, strict=True))
        root = self.roots()
        is_tied = self._mark(atoms for pair in self.ties for atoms in pair)[cells]
        is_tied |= torch.bincount(cells)[cells] > 1  # those of several grids tie these
        unique, inverse = torch.unique(root[cells[is_tied]], return_inverse=True)
        first = torch.full_like(unique, len(inverse))
        order = torch.arange(len(inverse), device="cpu")
        first = first.scatter_reduce(0, inverse, order, "amin")[inverse]
        for line in (rows, columns):
            self.tie(line[is_tied][first], line[is_tied])
        root = self.roots()
        is_row = root[cells] == root[rows]  # all of a head is tied: its columns stay
        is_below = self._mark(root[cell[root[cell] != root[lines]]] for cell, lines, _ in below)
        is_inner = is_below | self._mark([root[cells[~is_row]]])
        is_cell = self._mark(root[cell] for cell, _, _ in (*self.grids, *self.head_grids))
        is_below[FIXED] = is_inner[FIXED] = is_cell[FIXED] = False  # what stays is in no grid
        is_nested = is_inner[root[rows]] | is_cell[root[columns]] | is_below[root[cells]]
        is_fixed = is_nested | (root[cells] == FIXED)
        for line, stays in ((rows, is_fixed), (columns, is_fixed | is_row)):
            self.tie(line[stays], torch.full_like(line[stays], FIXED))
        self.tie(cells[is_nested], torch.full_like(cells[is_nested], FIXED))
        for _, *lines in grids:
            for line in lines:
                if bool((root[line] == root[line[0]]).all()):  # it could only go as a whole
                    self.tie(line[:1], torch.full_like(line[:1], FIXED))
        for block in list(self.blocks):
            is_blocked = self._mark([root[block.ids]])[root[cells]]
            self.blocks += _blocks(torch.cat([rows[is_blocked], columns[is_blocked]]), block.reason)

    def _mark(self, parts: Iterable[Tensor]) -> Tensor:
        """Return for each atom whether it is among some."""
        marked = torch.zeros(self.n_atoms, dtype=torch.bool, device="cpu")
        for atoms in parts:
            marked[atoms] = True
        return marked

    def parents(self) -> Tensor:
        """Return three channels for each atom, with any of which it goes: mostly one, thrice.

        The third is that of its head's place among those that share keys and values.
        """
        root, (rows, columns) = self.roots(), self.lines()
        group, within = torch.arange(self.n_atoms, device="cpu").repeat(2, 1)
        for heads, groups, places in self.head_grids:
            group[root[heads]], within[root[heads]] = root[groups], root[places]
        group, within = group[rows], within[rows]
        columns = torch.where((rows == columns) & (rows != group), FIXED, columns)
        group, columns = (torch.where(group == columns, within, x) for x in (group, columns))
        return torch.stack([group, columns, within])

    def lines(self) -> Tensor:
        """Return row and column of each atom in grids, and itself, twice, of others."""
        root = self.roots()
        line_of = root.repeat(2, 1)
        for cells, rows, columns in self.grids:
            lines = root[torch.stack([rows, columns])]
            if int(cells[0]) in self.matrices:  # with the other, where one always stays
                lines = torch.where(lines == FIXED, lines.flip(0), lines)
            line_of[:, root[cells]] = lines
        return line_of[:, root]

    def roots(self, *, with_fixed: bool = True) -> Tensor:
        """Return for each atom the smallest that it is tied to, if need be by what must stay."""
        if not with_fixed:
            free = [
                (first[is_free], second[is_free])
                for first, second in self.ties
                for is_free in ((first != FIXED) & (second != FIXED),)
            ]
            return _join(torch.arange(self.n_atoms, device="cpu"), free)
        fresh = torch.arange(len(self._root), self.n_atoms, device="cpu")
        self._root = _join(torch.cat([self._root, fresh]), self.ties[self._n_joined :])
        self._n_joined = len(self.ties)
        return self._root


def _join(root: Tensor, ties: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the smallest atom of each class; `root` has that of each class before these ties."""
    if not ties:
        return root
    first, second = map(torch.cat, zip(*ties, strict=True))
    while True:
        low = torch.minimum(root[first], root[second])
        high = torch.maximum(root[first], root[second])
        lowered = root.scatter_reduce(0, high, low, "amin")
        lowered = lowered[lowered]
        if torch.equal(lowered, root):
            return root
        root = lowered


def _as_grid(cells: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = rows[:, None].expand_as(cells), columns.expand_as(cells)
    return cells.reshape(-1), rows.reshape(-1), columns.reshape(-1)


def _blocks(ids: Tensor, reason: Reason) -> list[Block]:
    ids = torch.unique(without_repeats(ids))
    ids = ids[ids != FIXED]
    return [Block(ids, reason)] if len(ids) else []
