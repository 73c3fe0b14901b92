"""Shapley values of a game that is given by the value of every coalition. Pure arithmetic."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["shapley"]


def shapley(values: np.ndarray) -> np.ndarray:
    """Exact Shapley value of each player.

    Parameters
    ----------
    values : float[2**n]
        Value of each coalition; bit i of the index says whether player i is in it.

    Returns
    -------
    float[n]
        They sum to ``values[-1] - values[0]``. A player that never changes the value gets exactly 0.

    Raises
    ------
    ValueError
        If the length is no power of two.
    """
    count = len(values)
    players = count.bit_length() - 1
    if count == 0 or count != 1 << players:
        raise ValueError(f"values: expected 2**n of them, found {count}")
    coalitions = np.arange(count)
    size = np.zeros(count, dtype=np.int64)
    for player in range(players):
        size += coalitions >> player & 1
    weight = np.array([1.0 / (players * math.comb(players - 1, s)) for s in range(players)])
    result = np.zeros(players)
    for player in range(players):
        without = coalitions[coalitions >> player & 1 == 0]
        gain = values[without | 1 << player] - values[without]
        result[player] = math.fsum(weight[size[without]] * gain)
    return result
