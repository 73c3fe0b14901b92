"""Serving runtime: requests, schedulers and the steps of an engine on one GPU or its tensor-parallel shards."""
