"""Quality of sparse models, measured: pruning, studies on real data, guardrails, and quality at an equal latency.

One convention: N:M = N kept of M along the reduction dimension. `pruners`, `schedule` and `rounding` make the models
of the studies (`digits`, `lm`, `magika`); `record` is the file that any measured quality comes in; `guardrail` holds it
against the dense baseline; `latency` simulates, and `frontier` joins both.
"""
