"""Step times, memory, requests, results, the commands; queues and schedulers have a file of their own."""

from __future__ import annotations

import inspect
import json
import math
import shlex
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.measured import MeasuredRow
from sparsesim.serving import kernels
from sparsesim.serving.api import simulate_serving, validate_serving
from sparsesim.serving.endtoend import predict_cells
from sparsesim.serving.engine import StepLog, Trace
from sparsesim.serving.kernel_rows import correct_kernels
from sparsesim.serving.measured import COLUMNS, is_serving_file, read_cells
from sparsesim.serving.memory import GB_IS, memory_of
from sparsesim.serving.models import MODELS, ServedModel, get_served_model
from sparsesim.serving.requests import Arrivals, Lengths, Request, draw_load, read_trace
from sparsesim.serving.results import measure
from sparsesim.serving.scheduler import Sequence
from sparsesim.serving.stack import HOSTS, SERVING_STACKS, Host, get_serving_stack
from sparsesim.serving.stats import estimate, t_quantile
from sparsesim.serving.steps import (
    EAGER,
    FULL,
    GRID,
    PIECEWISE,
    Batch,
    StepModel,
    _pipeline,
    capture_sizes,
    interpolation_error,
)
from sparsesim.validate import predict_rows

GPU = load_gpu("rtx4090")
STACK = get_serving_stack("vllm-slidesparse")
#: small enough that a GEMM takes no time to simulate
TINY = ServedModel("tiny", 2, 512, 8, 4, 64, 1024, 4096, True, "made up")


def tiny(pattern="2:4", dtype="i8", gpu=GPU, **options):
    return StepModel(gpu, TINY, STACK, dtype, pattern, **options)


# --- models and parameters ---


def test_packaged_models_have_the_weights_of_the_workload_files():
    from sparsesim.workload import load_workload, workload_names

    shared = set(MODELS) & set(workload_names())
    assert {"llama-3.2-1b", "qwen2.5-14b"} <= shared
    for name in shared:
        ops = load_workload(name, phase="decode", tokens=64).ops
        weights = {op.name.rpartition("/")[2]: (op.m, op.k, op.count) for op in ops}
        model = MODELS[name]
        assert weights.pop("lm_head")[:2] == (model.vocab, model.hidden)
        assert weights == {x.name: (x.m, x.k, model.layers) for x in model.linears()}


def test_a_model_from_a_config_file(tmp_path):
    config = {
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert get_served_model(path).linears() == get_served_model("Llama3.2-1B").linears()
    path.write_text(json.dumps(config), encoding="utf-8-sig")  # a byte-order mark is no part of the text
    assert get_served_model(path).linears() == get_served_model("Llama3.2-1B").linears()
    path.write_text(json.dumps({**config, "hidden_size": "wide", "vocab_size": None}))
    with pytest.raises(UserError) as caught:
        get_served_model(path)
    assert [line.split(": ")[1] for line in caught.value.problems] == ["hidden_size", "vocab_size"]
    with pytest.raises(UserError, match=r"did you mean 'llama-3.2-1b'"):
        get_served_model("lama-3.2-1b")


def test_every_parameter_of_a_stack_has_a_source():
    for stack in SERVING_STACKS.values():
        assert {s.status for s in stack.sources.values()} <= {"datasheet", "measured", "fitted", "assumed"}
        with pytest.raises(ValueError, match="source for seq_serial"):
            replace(stack, sources={k: v for k, v in stack.sources.items() if k != "seq_serial"})
    assert all(load_gpu(name) for name in HOSTS)


def test_a_measured_kernel_corrects_the_simulated_one_by_its_error(tmp_path):
    """Rows twice as slow as their prediction make the same layers twice as slow, and no others."""
    shard = TINY.linears()[0]
    row = MeasuredRow(
        "rtx4090", "cuBLASLt (best alg search)", shard.m, 1024, shard.k, 1, "i8", "i32", "dense", "", 1.0, "stream",
        "warm", "free", "", "x", "f", 2,
    )  # fmt: skip
    (predicted,), _ = predict_rows([row], jobs=1)
    found = correct_kernels([replace(row, time_us=2 * predicted.predicted_us)], jobs=1)["rtx4090"]
    assert found.factor(shard.m, 4096, shard.k, "i8", False) == pytest.approx(2.0)
    assert found.factor(shard.m, 4096, shard.k, "i8", True) == 1.0
    plain, corrected = (tiny("dense", measured=rows).linear(1024).by_layer for rows in (None, found))
    assert [b / a for a, b in zip(plain, corrected, strict=True)] == pytest.approx([2.0, 1.0, 1.0, 1.0])
    both = {1024: 2.0, 4096: 8.0}
    found = correct_kernels(
        [
            replace(r, time_us=both[r.n] * p.predicted_us)
            for r in (row, replace(row, n=4096))
            for p in predict_rows([r], jobs=1)[0]
        ],
        jobs=1,
    )["rtx4090"]
    assert found.factor(shard.m, 2048, shard.k, "i8", False) == pytest.approx(4.0)


# --- a step ---


def test_pipeline_is_the_recurrence_of_issues_and_kernels():
    rng = np.random.default_rng(0)
    for _ in range(20):
        issues, work = rng.exponential(1.0, 5).tolist(), rng.exponential(1.0, 5).tolist()
        host = device = 0.0
        for issue, seconds in zip(issues * 3, work * 3, strict=True):
            host += issue
            device = max(device, host) + seconds
        assert _pipeline(issues, work, 3) == pytest.approx(device)


def test_a_step_is_bound_by_the_host_or_by_the_gpu():
    model = tiny()
    few, many = (model.time(Batch(chunks=((n, n),), sampled=1)) for n in (1024, 65536))
    slow = tiny(host=Host(10 * model.host.step, 10 * model.host.launch))
    assert few.mode == many.mode == EAGER
    # few tokens: the GPU waits, and the step takes as long as the host
    assert few.host_bound > 0.8
    assert few.seconds == pytest.approx(few.serial + few.issue, rel=0.05)
    assert slow.time(Batch(chunks=((1024, 1024),), sampled=1)).seconds == pytest.approx(10 * few.seconds, rel=0.05)
    # many: the host is hidden but for its serial part
    assert many.host_bound < 0.1
    assert many.seconds == pytest.approx(many.serial + many.gpu, rel=0.08)
    assert many.gpu == pytest.approx(sum(many.parts))


def test_graphs_hide_the_launches_and_pad_the_batch():
    model = tiny()
    graph = model.time(Batch(decodes=60, context=6000, sampled=60))
    assert graph.mode == FULL
    assert graph.gpu == pytest.approx(model.time(Batch(decodes=64, context=6000, sampled=60)).gpu)
    eager = model.with_max_seqs(16).time(Batch(decodes=60, context=6000, sampled=60))
    assert eager.mode == EAGER
    assert eager.seconds > 3 * graph.seconds
    mixed = model.time(Batch(chunks=((40, 40),), decodes=20, context=2000, sampled=21))
    assert mixed.mode == PIECEWISE
    assert graph.issue < mixed.issue < eager.issue
    assert capture_sizes(512)[-1] == 512
    assert capture_sizes(20) == (1, 2, 4, 8, 16)


def test_the_sparse_path_pays_host_time_that_small_steps_show_whole():
    """The cliff by mechanism: the same host parameters lose on few tokens and win on many."""
    batches = [Batch(chunks=((1024, 1024),) * n, sampled=n) for n in (1, 8)]
    dense, sparse = (StepModel(GPU, MODELS["llama-3.2-1b"], STACK, "i8", pattern) for pattern in ("dense", "2:4"))
    gains = [dense.time(b).seconds / sparse.time(b).seconds for b in batches]
    assert gains[0] < 0.95 < 1.1 < gains[1]


def test_interpolation_is_exact_on_the_grid_and_close_between():
    model = tiny()
    assert set(np.diff(np.log2(GRID)).round(3)) <= {1.0, 0.585, 0.415}
    assert interpolation_error(model, [64, 1024]) == [0.0, 0.0]
    errors = interpolation_error(model, [80, 320, 1280])
    assert max(map(abs, errors)) < 0.25
    assert max(map(abs, errors)) > 0.0
    exact = tiny(exact=True)
    assert exact.linear(320).total != model.linear(320).total


def test_tensor_parallel_shards_meet_the_dispatch_rules_themselves():
    odd = replace(TINY, ffn=1056, heads=8)  # 1056 / 2 = 528 is no multiple of 32
    whole, half = (StepModel(GPU, odd, STACK, "i8", "2:4", tp=tp) for tp in (1, 2))
    assert set(whole.paths().values()) == {"sparse"}
    assert half.paths()["down"] == "dense: shape-alignment"
    assert half.paths()["qkv"] == "sparse"
    linear = half.linear(1024)
    assert linear.fallback == pytest.approx(2 * linear.by_layer[3])
    assert 0 < linear.fallback < linear.pruned
    step = half.time(Batch(chunks=((1024, 1024),), sampled=1))
    assert dict(zip(("linear", "allreduce"), (step.parts[0], step.parts[-1]), strict=True))["allreduce"] > 0
    with pytest.raises(UserError, match="tp: expected a divisor of heads = 8"):
        StepModel(GPU, TINY, STACK, "i8", "2:4", tp=3)


@pytest.mark.parametrize("dtype", ["i8", "bf16"])
def test_odd_token_counts_are_padded_not_sent_to_the_dense_path(dtype):
    odd, even, dense = tiny(dtype=dtype), tiny(dtype=dtype), tiny("dense", dtype)
    assert set(odd.paths(517).values()) == {"sparse"}
    assert odd.linear(3).fallback == 0
    batch = Batch(chunks=((1037, 1037),), sampled=1)
    assert odd.time(batch).issue == pytest.approx(even.time(Batch(chunks=((1040, 1040),), sampled=1)).issue)
    assert odd.linear(1037) == odd.linear(1040)
    assert (dense.linear(1037) == dense.linear(1040)) == (dtype == "i8")


def test_a_pattern_without_hardware_falls_back_whole():
    linear = tiny("5:8").linear(1024)
    assert linear.fallback == linear.pruned == linear.total
    assert linear.total == tiny("dense").linear(1024).total
    assert tiny("dense").linear(1024).pruned == 0


def test_other_kernels_are_bound_by_what_they_move():
    small, large = (kernels.stream_s(GPU, n, n, 0.7, graph=True) for n in (1e3, 1e9))
    assert large == pytest.approx(2e9 / (GPU.dram.bytes_per_s * GPU.dram.achieved_fraction * 0.7), rel=0.01)
    assert kernels.launch_s(GPU, True) < small < 2e-6
    # in L2, a tensor moves faster than DRAM could
    assert kernels.stream_s(GPU, 4e6, 4e6, 0.7, graph=True) < 0.5 * 8e6 / GPU.dram.bytes_per_s + 2e-6
    context = 1e6
    read = kernels.decode_attention_s(GPU, context, 8, 128, 0.6, graph=True)
    assert read == pytest.approx(context * 2 * 8 * 128 * 2 / (GPU.dram.bytes_per_s * 0.92 * 0.6), rel=0.01)
    work = kernels.prefill_attention_s(GPU, 1e9, 1e5, 32, 8, 128, 0.5, graph=False)
    assert work == pytest.approx(4e9 * 32 * 128 / (kernels.tensor_rate(GPU) * 0.5), rel=0.01)
    # ring: 2 (tp - 1) / tp of the bytes over the link, and as many hops
    assert kernels.allreduce_s(GPU, 8e8, 4) == pytest.approx(6 * (2e8 / kernels.PCIE + kernels.HOP_S))
    assert kernels.allreduce_s(GPU, 8e8, 1) == 0


# --- memory ---


def test_sparse_weights_leave_more_for_the_cache():
    model = get_served_model("qwen2.5-14b")
    dense, sparse = (
        memory_of(StepModel(GPU, model, STACK, "i8", pattern), 2048, 256, 0.9) for pattern in ("dense", "2:4")
    )
    linear = model.layers * sum(x.m * x.k for x in model.linears())
    other = 2 * 2 * model.vocab * model.hidden
    assert dense.weights == linear + other
    # 8-bit 2:4 keeps half the values and two bits of metadata for each
    assert sparse.weights == linear * 0.625 + other
    assert sparse.kv_bytes - dense.kv_bytes == dense.weights - sparse.weights
    assert dense.budget == pytest.approx(0.9 * GPU.dram.bytes * GB_IS)
    assert dense.kv_bytes_per_token == 48 * 2 * 8 * 128 * 2
    assert dense.tokens == dense.blocks * 16
    # what falls back is stored dense
    assert memory_of(StepModel(GPU, model, STACK, "i8", "5:8"), 2048, 256, 0.9).weights == dense.weights
    with pytest.raises(UserError, match=r"expected room for a KV cache, found 24\.\d GB of rtx4090 against 29"):
        memory_of(StepModel(GPU, model, STACK, "bf16", "dense"), 2048, 256, 0.95)


# --- requests ---


def test_equal_seeds_draw_equal_requests_and_streams_are_apart():
    poisson = draw_load(Arrivals("poisson", rate=2.0), Lengths(100, 50, 0.5), 200, 3)
    assert poisson == draw_load(Arrivals("poisson", rate=2.0), Lengths(100, 50, 0.5), 200, 3)
    assert poisson != draw_load(Arrivals("poisson", rate=2.0), Lengths(100, 50, 0.5), 200, 4)
    bursty = draw_load(Arrivals("bursty", rate=2.0, burst=5), Lengths(100, 50, 0.5), 200, 3)
    assert [r.prompt for r in bursty.requests] == [r.prompt for r in poisson.requests]


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
def test_drawn_loads_have_the_rates_and_means_asked_for(kind):
    load = draw_load(Arrivals(kind, rate=4.0, burst=5.0), Lengths(300, 80, 0.8), 20_000, 0)
    times = np.array([r.arrival_s for r in load.requests])
    assert len(times) / times[-1] == pytest.approx(4.0, rel=0.06)
    prompts = np.array([r.prompt for r in load.requests])
    assert prompts.mean() == pytest.approx(300, rel=0.03)
    assert prompts.std() / prompts.mean() == pytest.approx(0.8, rel=0.05)
    together = np.mean(np.diff(times) == 0)  # of a geometric burst of mean 5, 4 of 5 follow at once
    assert together == pytest.approx(0.8 if kind == "bursty" else 0.0, abs=0.02)


def test_a_trace_is_read_sorted_and_its_faults_are_named(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n2.5,10,3\n0.5,20,4\n")
    assert read_trace(path) == (Request(0.5, 20, 4), Request(2.5, 10, 3))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n-1,10,3\n1,ten,0\n2,5\n")
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert [line.removeprefix(f"{path}: ") for line in caught.value.problems] == [
        "line 2: arrival_s: expected a time of at least 0 [s], found '-1'",
        "line 3: prompt_tokens: expected an integer from 1 to 1048576, found 'ten'",
        "line 3: output_tokens: expected an integer from 1 to 1048576, found '0'",
        "line 4: output_tokens: expected an integer from 1 to 1048576, found None",
    ]
    path.write_text("arrival,prompt_tokens,output_tokens\n")
    with pytest.raises(UserError, match="a column 'arrival_s'"):
        read_trace(path)
    with pytest.raises(UserError, match="No such file"):
        read_trace(tmp_path / "none.csv")


# --- results ---


def test_problems_of_load_schedule_and_names_come_together():
    with pytest.raises(UserError) as caught:
        simulate_serving(
            "rtx409", "llama-3.2-1b", dtype="x", pattern="q", rate=-1.0, prompt=0, requests=0, scheduler="y", tp=0,
            warmup=1.0, kv_tokens=1,
        )  # fmt: skip
    text = "\n".join(caught.value.problems)
    fields = ("gpu", "rate", "prompt", "dtype", "pattern", "requests", "scheduler", "tp", "warmup", "kv-tokens")
    assert all(f"{field}: expected" in text for field in fields)
    assert len(caught.value.problems) == len(fields)


@pytest.mark.parametrize(
    "options",
    [
        ["--arrivals", "bursty", "--rate", "0.7", "--burst", "3", "--seed", "5", "--exact", "--max-tokens", "256"],
        ["--arrivals", "closed", "--clients", "3", "--think", "0.01", "--scheduler", "static", "--max-seqs", "4"],
        ["--trace", "TRACE", "--whole-prompts", "--kv-tokens", "4096", "--host", "0.5", "--pattern", "dense"],
        ["--tp", "2", "--memory-fraction", "0.5", "--spread", "0.1", "--warmup", "0.2", "--dtype", "e4m3"],
    ],
)
def test_a_run_says_what_runs_it_again(tmp_path, capsys, options):
    """Every argument, also those left to a default: the command of the JSON gives the same JSON, in another place."""
    trace = tmp_path / "a trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,3\n0.1,30,4\n")
    small = ["--requests", "6", "--replications", "2", "--prompt", "40", "--output", "4"]
    given = [str(trace) if word == "TRACE" else word for word in options]
    out = tmp_path / "run.json"
    assert main(["serve", "llama-3.2-1b", "--gpu", "rtx4090", *small, *given, "--json", str(out)]) == 0
    first = json.loads(out.read_text())
    program, *words = shlex.split(first["command"])
    assert program == "sparsesim"
    assert main([*words, "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == first
    assert set(inspect.signature(simulate_serving).parameters) - set(first["inputs"]) == {"progress"}
    assert simulate_serving(**first["inputs"]).to_dict() == first
    assert ("trace_hash" in first["provenance"]) == ("TRACE" in options)
    capsys.readouterr()


def test_metrics_of_a_trace_written_by_hand():
    def done(index, arrival, first, finish, output):
        sequence = Sequence(Request(arrival, 4, output), index, arrival)
        sequence.first_token, sequence.finish = first, finish
        return sequence

    trace = Trace(
        sequences=[done(0, 0.0, 1.0, 1.0, 1), done(1, 1.0, 3.0, 7.0, 5), done(2, 5.0, 6.0, 8.0, 2)],
        steps=[
            StepLog(0.0, 4.0, Batch(decodes=1), type("C", (), {"seconds": 4.0, "gpu": 2.0})(), 4, 0),
            StepLog(4.0, 8.0, Batch(decodes=3), type("C", (), {"seconds": 4.0, "gpu": 4.0})(), 8, 0),
        ],
        queue=[(0.0, 1), (1.0, 2), (3.0, 1), (5.0, 2), (6.0, 0)],
        end=8.0,
    )
    row = measure(trace, warmup=0.34, open_load=True)  # the first request is cut; the window is 1 s to 5 s
    assert (row["ttft_mean_s"], row["tpot_mean_s"], row["e2e_mean_s"]) == (1.5, 1.5, 4.5)
    assert row["output_tokens_per_s"] == pytest.approx((0.75 * 4 + 0.25 * 8) / 4)
    assert row["queue_mean"] == pytest.approx((2 * 2 + 2 * 1) / 4)
    assert row["queue_max"] == 2
    assert row["gpu_busy"] == pytest.approx((0.75 * 2 + 0.25 * 4) / 4)
    assert row["batch_mean"] == pytest.approx((3 * 1 + 1 * 3) / 4)
    assert measure(trace, 0.0, open_load=False)["output_tokens_per_s"] == pytest.approx(12 / 8)


def test_intervals_are_students():
    for freedom in (*range(1, 31), 100, 1000):
        assert t_quantile(freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), rel=1e-3)
    values = [1.0, 2.0, 4.0, 3.5]
    low, high = scipy_stats.t.interval(0.95, 3, np.mean(values), scipy_stats.sem(values))
    found = estimate(values)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert estimate([2.0]).high is None


SERVE = {"gpu": "rtx4090", "dtype": "i8", "prompt": 64, "output": 32, "requests": 40, "replications": 3, "rate": 50.0}


def run(**options):
    return simulate_serving(model=TINY, **{**SERVE, **options})


def test_the_same_call_gives_the_same_bytes():
    few = {"requests": 15, "replications": 2}
    first = run(**few)
    assert json.dumps(first.to_dict()) == json.dumps(run(**few).to_dict())
    assert run(seed=1, **few).to_dict()["variants"] != first.to_dict()["variants"]
    assert first.seeds == (0, 1)


def test_gains_are_booked_to_kernels_and_to_memory_and_sum():
    roomy = run()
    for gain in roomy.gains:
        assert gain.memory.mean == 0.0  # nobody ever waits for a block
        assert gain.kernels.mean == pytest.approx(gain.total.mean)
    dense, sparse = roomy.variant("dense"), roomy.variant("sparse")
    assert sparse.memory.tokens > dense.memory.tokens
    assert [v.name for v in roomy.variants] == ["dense", "sparse", "kernels only", "memory only"]

    # a card on which the dense weights leave room for 1500 tokens: freed memory is worth throughput
    wide = ServedModel("wide", 2, 2048, 16, 4, 128, 8192, 4096, True, "made up")
    full = memory_of(StepModel(GPU, wide, STACK, "i8", "dense"), 512, 32, 1.0)
    needed = full.budget - full.kv_bytes + 1500 * full.kv_bytes_per_token
    tight = simulate_serving(
        GPU, wide, arrivals="batch", prompt=64, output=64, spread=0.0, requests=64, replications=1,
        max_seqs=32, max_tokens=512, memory_fraction=needed / full.budget,
    )  # fmt: skip
    gains = {gain.metric: gain for gain in tight.gains}
    throughput = gains["output_tokens_per_s"]
    assert throughput.kernels.mean + throughput.memory.mean == pytest.approx(throughput.total.mean)
    assert throughput.memory.mean > 0.1
    assert tight.variant("dense").metrics["preemptions"].mean > tight.variant("sparse").metrics["preemptions"].mean


def test_a_dense_pattern_runs_one_variant_and_fallback_is_a_rate():
    assert [v.name for v in run(pattern="dense").variants] == ["dense"]
    result = run(pattern="5:8", replications=1)
    assert result.variant("sparse").metrics["fallback_rate"].mean == 1.0
    assert result.variant("sparse").paths["qkv"] == "dense: pattern-unsupported"
    assert all(gain.total.mean == 0.0 for gain in result.gains)


@pytest.mark.parametrize("arrivals", ["poisson", "bursty", "closed", "batch"])
@pytest.mark.parametrize("scheduler", ["continuous", "static"])
def test_every_kind_of_load_and_scheduler(arrivals, scheduler):
    result = run(arrivals=arrivals, scheduler=scheduler, replications=1, max_seqs=8, clients=4)
    row = result.variant("sparse").replications[0]
    assert 0 < row["ttft_p50_s"] <= row["ttft_p95_s"] <= row["ttft_p99_s"] < row["e2e_p99_s"]
    assert 0 < row["tensor_busy"] < row["gpu_busy"] <= 1
    assert row["fallback_rate"] == 0
    if arrivals == "closed":
        assert row["batch_mean"] <= 4


def test_continuous_batching_beats_static_batching_on_uneven_outputs():
    wait = {
        name: run(scheduler=name, spread=1.0, replications=1, max_seqs=8, rate=30.0).variant("dense").replications[0]
        for name in ("continuous", "static")
    }
    assert wait["continuous"]["ttft_mean_s"] < 0.7 * wait["static"]["ttft_mean_s"]


def test_bad_arguments_are_named_together():
    with pytest.raises(UserError) as caught:
        simulate_serving("rtx4091", "lama", serving_stack="vlm", arrivals="poison", rate=0.0, prompt=0)
    text = str(caught.value)
    for word in ("rtx4090", "'lama'", "vllm-slidesparse", "poisson", "rate", "prompt"):
        assert word in text
    with pytest.raises(UserError) as caught:
        run(scheduler="continous", dtype="f64", tp=0, warmup=1.0)
    assert len(caught.value.problems) == 4


def test_serve_prints_and_writes_json(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i / 20},64,{8 + i}\n" for i in range(20)))
    arguments = ["serve", "llama-3.2-1b", "--gpu", "rtx4090", "--trace", str(trace), "--replications", "2"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "TTFT p95 [ms]" in shown
    assert "freed memory" in shown
    assert main([*arguments, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["load"]["kind"] == "trace"
    assert document["variants"][0]["metrics"]["ttft_p95_s"]["mean"] > 0
    assert document["seeds"] == [0]
    assert main(["serve", "llama-3.2-1b", "--gpu", "rtx4090", "--rate", "-1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- measured throughputs ---

HEADER = ",".join(COLUMNS) + "\n"
CELLS = HEADER + (
    "rtx4090,Llama3.2-1B,i8,prefill,1024,18700,0.85\n"
    "rtx4090,Llama3.2-1B,i8,prefill,8192,91400,1.24\n"
    "rtx4090,Llama3.2-1B,i8,decode,64,9370,1.15\n"
    "rtx9999,Llama3.2-1B,i8,decode,64,9370,1.15\n"
)


def test_validate_reads_serving_throughputs(capsys, tmp_path):
    path = tmp_path / "endtoend.csv"
    path.write_text(CELLS)
    assert is_serving_file(path)
    assert main(["validate", str(path), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(g["gpu"], g["dtype"], g["phase"], g["kind"], g["rows"]) for g in document["groups"]] == [
        ("rtx4090", "i8", "decode", "throughput", 1),
        ("rtx4090", "i8", "decode", "speedup", 1),
        ("rtx4090", "i8", "prefill", "throughput", 2),
        ("rtx4090", "i8", "prefill", "speedup", 2),
        ("all", "all", "all", "throughput", 3),
        ("all", "all", "all", "speedup", 3),
    ]
    few, many, decode = document["rows"]
    assert few["predicted_speedup"] < 1 < many["predicted_speedup"]
    for row in document["rows"]:
        gap = math.log(row["kernel_speedup"] / row["predicted_speedup"])
        assert sum(row["shares"].values()) == pytest.approx(gap)
    assert max(few["shares"], key=few["shares"].get) == "host"
    assert decode["dense"]["steps"] == pytest.approx(256, abs=8)  # the front end lets them in one by one
    assert document["skipped"] == [{"row": f"{path}:5", "why": document["skipped"][0]["why"]}]
    assert "rtx9999" in document["skipped"][0]["why"]


def test_cells_do_not_depend_on_the_processes(tmp_path):
    path = tmp_path / "endtoend.csv"
    path.write_text(HEADER + "".join(f"{gpu},Llama3.2-1B,i8,decode,64,9000,1.1\n" for gpu in ("rtx4090", "l4", "x1")))
    cells = read_cells(path)
    one, two = (predict_cells(cells, jobs=jobs).to_dict() for jobs in (1, 2))
    assert one == two
    assert [row["gpu"] for row in one["rows"]] == ["rtx4090", "l4"]


def test_validate_prints_targets(capsys, tmp_path):
    path = tmp_path / "endtoend.csv"
    path.write_text("".join(CELLS.splitlines(keepends=True)[:2]))
    assert main(["validate", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "dense throughput within 20 % in 80 % of the cells" in shown
    assert "1 cells predicted, 0 skipped" in shown


def test_the_memory_effect_of_a_full_card_is_no_kernel_gain(tmp_path):
    path = tmp_path / "endtoend.csv"
    path.write_text(HEADER + "rtx4090,Qwen2.5-14B,i8,decode,64,1530,1.94\n")
    (cell,) = validate_serving([path]).predictions
    assert cell.dense.preemptions > 0
    assert cell.memory_gain > 1.02
    assert cell.sparse.preemptions == 0
    assert cell.shares["scheduling"] < 0


def test_faults_of_a_throughput_file_are_named(tmp_path):
    path = tmp_path / "endtoend.csv"
    path.write_text(HEADER + "rtx4090,Llama3.2-1B,i8,prefil,0,x,-1\nrtx4090,Llama3.2-1B\n")
    with pytest.raises(UserError) as caught:
        read_cells(path)
    assert [line.split(": ")[1:3] for line in caught.value.problems] == [
        ["line 2", "phase"],
        ["line 2", "tokens"],
        ["line 2", "dense_tokens_per_s"],
        ["line 2", "speedup"],
        ["line 3", "expected 7 fields, found 'fewer'"],
    ]
    with pytest.raises(UserError, match="found it twice"):
        validate_serving([path, path])
    assert not is_serving_file(tmp_path / "none.csv")
