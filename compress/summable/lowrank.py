"""``powersgd``: a matrix as the product of two thin ones (PowerSGD, Vogels et al., NeurIPS 2019).

A tensor of two or more dimensions is the matrix ``[shape[0], rest]``; a vector is padded to a square matrix, which
works much worse. If the two factors are not ``rate`` times smaller than the matrix, its values are sent. The product
is a sum of rank-1 terms in order, without fused operations, so that every device gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Buffer, Header, Reader, build
from ..codec import bytes_tensor, flatten, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import blocks
from ..errors import CodecError
from ..exchange.requests import Context, Program, Reduce
from ..primitives import philox
from ..primitives.key import Key
from ..primitives.scales import LARGEST
from ..quantizers.looped import Looped, Put
from ..quantizers.tables import largest_of
from ..specs.spec import Spec

_FAR = 60
"""If the largest magnitude is between 2^-60 and 2^60, no scaling is needed: products and sums stay in fp32's range, and
the bits do not depend on the scale."""
_PIECE = 1 << 16


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of the matrix that stands for a tensor."""
    count = math.prod(shape)
    if len(shape) >= 2 and count:
        return shape[0], count // shape[0]
    side = math.isqrt(max(0, count - 1)) + 1 if count else 0
    return side, -(-count // side) if side else 0


def orthonormal(p: torch.Tensor) -> torch.Tensor:
    """Gram-Schmidt on the columns of ``[m, r]``, twice, in fp64; a vanishing column becomes zero. The same bits on
    every device, because all members of a round must get the same result."""
    out = p.to(torch.float64).clone()
    scale = out.abs().amax()
    out /= torch.where(scale > 0, scale, torch.ones_like(scale))
    for i in range(out.shape[1]):
        before = dot(out[:, i], out[:, i]).sqrt()
        for _ in range(2):
            for j in range(i):
                out[:, i] -= out[:, j] * dot(out[:, j], out[:, i])
        length = dot(out[:, i], out[:, i]).sqrt()
        out[:, i] = out[:, i] / length if float(length) > 1e-10 * float(before) and float(length) > 0 else 0.0
    return out.to(torch.float32)


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The inner product of two fp64 vectors as an integer sum, which does not depend on the order of summation."""
    small, exponents = [], []
    for values in (a, b):
        exponent = torch.frexp(values.abs().amax())[1]
        small.append(torch.ldexp(values, -exponent))
        exponents.append(exponent)
    places = 62 - len(a).bit_length()
    whole = (small[0] * small[1] * 2.0**places).round().to(torch.int64).sum()
    return torch.ldexp(whole.to(torch.float64), exponents[0] + exponents[1] - places)


def product(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """p @ q.T of ``[m, r]`` and ``[k, r]`` as rank-1 terms added in order, each product rounded before its sum."""
    if p.device.type == "cpu" and fast.worth(len(p) * len(q)):
        out = fast.room(len(p) * len(q))
        blocks.add_product(out, p, q, None)
        return out.view(len(p), len(q))
    out = torch.zeros(p.shape[0], q.shape[0], device=p.device)
    step = max(1, _PIECE // len(q)) if p.device.type == "cpu" else len(p)
    for first in range(0, len(p), step):
        here = out[first : first + step]
        for i in range(p.shape[1]):
            here += p[first : first + step, i, None] * q[None, :, i]
    return out.clamp_(-LARGEST, LARGEST)


def times(x: torch.Tensor, columns: int, q: torch.Tensor) -> torch.Tensor:
    """The matrix of ``columns`` columns (last row padded with zeros) times ``q``, without a copy of the matrix."""
    whole = x.numel() // columns
    matrix = x[: whole * columns].view(whole, columns)
    if x.device.type == "cpu":  # a column at a time: of thin matrices, BLAS takes twice as long for all at once
        done = torch.stack([matrix @ column for column in q.T.contiguous()], 1)
    else:
        done = matrix @ q
    rest = x[whole * columns :]
    return torch.cat([done, (rest @ q[: len(rest)])[None]]) if len(rest) else done


def times_back(x: torch.Tensor, columns: int, p: torch.Tensor) -> torch.Tensor:
    """The same matrix, transposed, times ``p``."""
    whole = x.numel() // columns
    done = (p[:whole].T @ x[: whole * columns].view(whole, columns)).T.contiguous()
    rest = x[whole * columns :]
    if len(rest):
        done[: len(rest)] += rest[:, None] * p[whole]
    return done


class PowerSgd(Looped):
    """rank: of the factors; iterations: power steps of a single encode, from a cold start; factors: bits of a number
    of theirs; rate: how many times fewer bits they must have. In an exchange the workers compute the factors of the
    mean (two reductions), and ``context.memory`` keeps Q for a warm start; losing it only increases the error, and
    workers may start from different ones."""

    reductions = 2

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.rank, self.iterations, self.rate = spec.number("rank"), spec.number("iterations"), spec.real("rate")
        self.sent = torch.bfloat16 if spec.number("factors") == 16 else torch.float32
        """The dtype of the factors on the wire."""

    def _plan(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """(rows, columns, rank); rank 0: the values themselves are sent."""
        rows, columns = matrix_shape(shape)
        rank = min(self.rank, rows, columns)
        fewer = (rows + columns) * rank * self.sent.itemsize * self.rate < 4 * math.prod(shape)
        return rows, columns, rank if fewer else 0

    def _rounded(self, factor: torch.Tensor) -> torch.Tensor:
        """fp32: a factor as it is sent."""
        return factor.to(self.sent).to(torch.float32)

    def _start(self, columns: int, rank: int, key: Key, device: torch.device) -> torch.Tensor:
        return orthonormal(philox.normal(columns * rank, Key(key.seed, key.step), 0x50, device).view(columns, rank))

    def pieces(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0, members: int = 1) -> list[Buffer]:
        flat, dtype = flatten(x)
        shape = tuple(x.shape)
        with torch.no_grad():
            body = self._factors(flat, shape, Key(seed, step)) if flat.numel() else []
        return build(self.spec, dtype, shape, body, None, None)

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        return self._factors(x, (x.numel(),), key)

    def _factors(self, x: torch.Tensor, shape: tuple[int, ...], key: Key) -> list[Buffer]:
        rows, columns, rank = self._plan(shape)
        if not rank:
            return [tensor_bytes(x)]
        exponent = torch.frexp(largest_of(x, x.numel()))[1]
        apart = int(exponent) if abs(int(exponent)) > _FAR else 0
        matrix = torch.ldexp(torch.ldexp(x, -exponent // 2), -exponent - -exponent // 2) if apart else x
        q = self._start(columns, rank, key, x.device)
        for turn in range(self.iterations):
            p = self._rounded(orthonormal(_filled(times(matrix, columns, q if turn == 0 else orthonormal(q)), rows)))
            q = times_back(matrix, columns, p)
        q = (torch.ldexp(q, exponent) if apart else q).clamp(-3e38, 3e38)
        return [tensor_bytes(p.to(self.sent)), tensor_bytes(q.to(self.sent))]

    def _read_factors(
        self, reader: Reader, header: Header, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(``[rows, rank]``, ``[columns, rank]``), or (the values, None)."""
        n = header.elements
        rows, columns, rank = self._plan(header.shape)
        dtype = self.sent if rank else torch.float32
        size = dtype.itemsize * ((rows + columns) * rank if rank else n)
        values = bytes_tensor(reader.take(size), dtype, device).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise CodecError("the blob has values that are not finite")
        if not rank:
            return values, None
        if n > 4096 * max(1, reader.at):
            raise CodecError(f"the blob claims {n} elements, too many for its bytes")
        return values[: rows * rank].view(rows, rank), values[rows * rank :].view(columns, rank)

    def opened(self, reader: Reader, header: Header) -> Put:
        p, q = self._read_factors(reader, header, torch.device("cpu"))
        if q is None:
            q, p = p[:, None], torch.ones(1, 1)
        return lambda out, weight: blocks.add_product(out, p, q, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        p, q = self._read_factors(reader, header, device)
        return p if q is None else product(p, q).view(-1)[: header.elements]

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        rows, columns, rank = self._plan(tuple(x.shape))
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        if not bool(torch.isfinite(flat).all()):
            raise CodecError("a value is not finite: not encoded")
        if not rank:
            total = yield Reduce(flat, "sum")
            context.own = flat
            return total.view(x.shape)  # type: ignore[no-any-return]
        warm = context.memory.get("q")
        fits = warm is not None and warm.shape == (columns, rank) and bool(warm.abs().sum(0).min() > 0)
        q = (
            orthonormal(warm)
            if fits and warm is not None
            else self._start(columns, rank, Key(context.tensor_seed, context.step), x.device)
        )
        total_p = yield Reduce(_filled(times(flat, columns, q), rows).to(self.sent), "sum")
        p = orthonormal(total_p.to(torch.float32))
        total_q = yield Reduce(times_back(flat, columns, p).to(self.sent), "sum")
        total_q = total_q.to(torch.float32, copy=True)
        context.memory["q"] = total_q.clone()
        # The error is relative to the approximation of the mean, as in the paper, not to a local approximation.
        out = product(p, total_q).view(-1)[: flat.numel()]
        context.own = out * (1.0 / context.size if context.part is None else context.part)
        return out.view(x.shape)


def _filled(p: torch.Tensor, rows: int) -> torch.Tensor:
    """``p`` padded with rows of zeros to ``rows`` rows."""
    return torch.nn.functional.pad(p, (0, 0, 0, rows - len(p)))
