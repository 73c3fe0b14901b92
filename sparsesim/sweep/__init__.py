"""Many design points: files that span them, their evaluation on cores or a cluster, the store of their results.

`spec` reads a sweep file and `design` lays out its points; `evaluate` simulates one; `driver` runs them all through
one of the `executors` and keeps what is done in a `store`; `query` asks it; `optimise` searches. Nothing is imported
here, so that a question to a store does not load the simulator.
"""
