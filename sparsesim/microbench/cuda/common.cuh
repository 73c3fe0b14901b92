// What the micro-benchmarks share: error checks, one JSON object a line on stdout, medians.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        cudaError_t status_ = (call);                                                                 \
        if (status_ != cudaSuccess) {                                                                 \
            std::fprintf(stderr, "%s (%s, line %d)\n", cudaGetErrorString(status_), __FILE__, __LINE__); \
            std::exit(3);                                                                             \
        }                                                                                             \
    } while (0)

inline void emit(const char *name, double value, const char *unit) {
    std::printf("{\"name\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"}\n", name, value, unit);
    std::fflush(stdout);
}

inline double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    size_t at = static_cast<size_t>(share * (values.size() - 1) + 0.5);
    return values[at];
}

inline double median(const std::vector<double> &values) { return quantile(values, 0.5); }

// Take device `argv[1]` and say which it is, so that readings are never put down to another board.
inline cudaDeviceProp open_device(int argc, char **argv) {
    int index = argc > 1 ? std::atoi(argv[1]) : 0;
    CHECK(cudaSetDevice(index));
    cudaDeviceProp board;
    CHECK(cudaGetDeviceProperties(&board, index));
    int driver = 0, runtime = 0;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    std::printf("{\"device\": \"%s\", \"compute_capability\": \"%d.%d\", \"sms\": %d, \"l2_bytes\": %d, "
                "\"cuda_driver\": %d, \"cuda_runtime\": %d}\n",
                board.name, board.major, board.minor, board.multiProcessorCount, board.l2CacheSize, driver, runtime);
    return board;
}

__device__ inline unsigned long long global_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
