"""Running statistics of what enters a matmul, over any amount of calibration text in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from trtdecode.errors import BuildError

Float32 = npt.NDArray[np.float32]

#: Rows kept of each input, for percentiles and for AWQ's search.
SAMPLE_ROWS = 512


class InputStatistics:
    """Statistics of one value [rows, channels]; feed it batch by batch.

    Args:
        num_channels: width of the value.
        with_hessian: also sum X^T X (channels x channels in float32), for GPTQ.
    """

    def __init__(self, name: str, num_channels: int, *, with_hessian: bool = False) -> None:
        self.name = name
        self.num_rows = 0
        self.channel_absmax: Float32 = np.zeros(num_channels, np.float32)
        self._sample: Float32 = np.empty((0, num_channels), np.float32)
        self._random = np.random.default_rng(0)
        self._hessian: Float32 | None = np.zeros((num_channels, num_channels), np.float32) if with_hessian else None

    def add(self, rows: Float32) -> None:
        """Takes more rows [n, channels].

        Raises:
            BuildError: a value is not finite.
        """
        rows = rows.reshape(-1, len(self.channel_absmax))
        largest = np.abs(rows).max(axis=0, initial=0)
        if not np.isfinite(largest).all():
            raise BuildError(f"calibration: {self.name!r} is not finite; the model overflows on the calibration text")
        np.maximum(self.channel_absmax, largest, out=self.channel_absmax)
        if self._hessian is not None:
            self._hessian += rows.T @ rows
        self._keep_sample(rows)
        self.num_rows += len(rows)

    @property
    def sample(self) -> Float32:
        """Up to `SAMPLE_ROWS` rows, each row of the text as likely as any other."""
        return self._sample

    @property
    def hessian(self) -> Float32:
        """X^T X over all rows. Raises BuildError where it was not collected."""
        if self._hessian is None:
            raise BuildError(f"calibration: no Hessian was collected for {self.name!r}")
        return self._hessian

    def magnitude(self, method: str, percentile: float, factors: Float32 | None = None) -> float:
        """The magnitude that a per-tensor scale should cover.

        Args:
            method: "absmax" (over all rows) or "percentile" (of |value| over the sample).
            percentile: 99.99 leaves one value in ten thousand to saturate.
            factors: the input is divided by these per channel first (SmoothQuant).
        """
        divisor = np.float32(1.0) if factors is None else factors
        if method == "absmax":
            return float((self.channel_absmax / divisor).max(initial=0))
        return float(np.percentile(np.abs(self._sample / divisor), percentile)) if len(self._sample) else 0.0

    def _keep_sample(self, rows: Float32) -> None:
        """Reservoir sampling, a batch at a time."""
        room = SAMPLE_ROWS - len(self._sample)
        if room > 0:
            self._sample = np.concatenate([self._sample, rows[:room]])
            rows = rows[room:]
        # Row number n (from 1) stays with probability SAMPLE_ROWS / n, in a random place.
        numbers = self.num_rows + max(room, 0) + 1 + np.arange(len(rows))
        places = self._random.integers(numbers)
        for index in np.flatnonzero(places < SAMPLE_ROWS):
            self._sample[places[index]] = rows[index]
