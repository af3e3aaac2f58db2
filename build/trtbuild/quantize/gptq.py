"""GPTQ: quantises column by column and spreads each column's error over the columns still to come.

https://arxiv.org/abs/2210.17323, algorithm 1, with lazy batches of columns. The Hessian is X^T X over the calibration
rows. With `act_order` the columns of largest diagonal go first; groups stay those of the original order ("static
groups"), so the result is stored like any grouped weight and needs no index of groups at run time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from trtdecode.errors import BuildError

from trtbuild.quantize.int4 import MAX_CODE, MIN_CODE, Int4Groups, group_scales

Float32 = npt.NDArray[np.float32]

_BATCH_COLUMNS = 128


def gptq_quantize(
    weights: Float32, hessian: Float32, group_size: int, *, act_order: bool = False, damping: float = 0.01
) -> Int4Groups:
    """Quantises [out, in] to INT4 groups.

    Args:
        weights: finite float32 [out, in].
        hessian: X^T X [in, in] of the inputs, up to a factor.
        group_size: divides `in`.
        act_order: quantise the columns in order of falling Hessian diagonal.
        damping: part of the mean diagonal that is added to it.

    Raises:
        BuildError: the Hessian is not finite.
    """
    if not np.isfinite(hessian).all():
        raise BuildError("GPTQ: the Hessian is not finite; an activation overflowed during calibration")
    num_columns = weights.shape[1]
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(num_columns)
    work = np.asfortranarray(weights[:, order], np.float32)  # walked by columns
    upper = _inverse_factor(hessian[np.ix_(order, order)].astype(np.float64), damping).astype(np.float32)
    scales = group_scales(weights, group_size)
    column_scales = np.repeat(scales, group_size, axis=1)[:, order]
    codes = np.empty(weights.shape, np.int8)
    for begin in range(0, num_columns, _BATCH_COLUMNS):
        end = min(begin + _BATCH_COLUMNS, num_columns)
        errors = np.empty((weights.shape[0], end - begin), np.float32, order="F")
        for column in range(begin, end):
            scale = column_scales[:, column]
            rounded = np.clip(np.rint(work[:, column] / scale), MIN_CODE, MAX_CODE)
            codes[:, order[column]] = rounded.astype(np.int8)
            error = (work[:, column] - rounded * scale) / upper[column, column]
            work[:, column:end] -= np.outer(error, upper[column, column:end])
            errors[:, column - begin] = error
        work[:, end:] -= errors @ upper[begin:end, end:]
    return Int4Groups(codes, scales)


def _inverse_factor(hessian: npt.NDArray[np.float64], damping: float) -> npt.NDArray[np.float64]:
    """The upper Cholesky factor of the damped inverse Hessian."""
    diagonal = np.diag(hessian).copy()
    dead = diagonal <= 0
    mean = float(diagonal[~dead].mean()) if (~dead).any() else 1.0
    hessian = hessian.copy()
    hessian[dead, dead] = mean
    hessian[np.diag_indices_from(hessian)] += damping * mean
    inverse = np.linalg.inv(hessian)
    # numpy gives L with A = L L^T; the algorithm walks the columns of U with A = U^T U.
    return np.linalg.cholesky((inverse + inverse.T) / 2).T
