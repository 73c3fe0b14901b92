// Launch costs: the interval between dependent empty kernels of a stream and of a graph, and an event pair's reading.
//
// The stream's queue is filled behind a kernel that spins, so that the device never waits for the host. Each kernel
// writes the global timer; its resolution is 32 ns to 1 us by part, so the interval is the mean over the chain.
#include <chrono>

#include "common.cuh"

constexpr int CHAIN = 400, REPEATS = 9, PAIRS = 200;

__global__ void stamp(unsigned long long *at) { *at = global_ns(); }

__global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

static double interval(const unsigned long long *stamps) {
    return static_cast<double>(stamps[CHAIN - 1] - stamps[0]) / (CHAIN - 1);
}

int main(int argc, char **argv) {
    open_device(argc, argv);
    unsigned long long *stamps;
    CHECK(cudaMallocManaged(&stamps, CHAIN * sizeof *stamps));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    std::vector<double> in_stream, in_graph, host, pair;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < CHAIN; ++i) stamp<<<1, 1, 0, stream>>>(stamps + i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    for (int repeat = 0; repeat <= REPEATS; ++repeat) {
        spin<<<1, 1, 0, stream>>>(20'000'000);
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < CHAIN; ++i) stamp<<<1, 1, 0, stream>>>(stamps + i);
        const std::chrono::duration<double, std::nano> issued = std::chrono::steady_clock::now() - start;
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(stream));
        const double chained = interval(stamps);
        CHECK(cudaGraphLaunch(ready, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (repeat == 0) continue;  // the first loads the code and uploads the graph
        in_stream.push_back(chained);
        host.push_back(issued.count() / CHAIN);
        in_graph.push_back(interval(stamps));
    }
    cudaEvent_t before, after;
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    for (int i = 0; i < PAIRS; ++i) {
        CHECK(cudaEventRecord(before, stream));
        stamp<<<1, 1, 0, stream>>>(stamps);
        CHECK(cudaEventRecord(after, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, before, after));
        pair.push_back(ms * 1e6);
    }
    emit("launch.stream_interval", median(in_stream), "ns");
    emit("launch.graph_interval", median(in_graph), "ns");
    emit("launch.event_pair", median(pair), "ns");
    emit("launch.host_call", median(host), "ns");
    return 0;
}
