"""Replay of practitioners' reports: each case is run, and what comes out is held against what was reported."""

from sparsesim.replay.cases import Case, load_cases
from sparsesim.replay.run import Outcome, replay, replay_file

__all__ = ["Case", "Outcome", "load_cases", "replay", "replay_file"]
