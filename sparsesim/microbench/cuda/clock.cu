// SM clock under a light load and under sustained tensor load: SM cycles over the global timer, on every SM.
//
// argv: device, seconds of each load. Operands are random bits with exponents near 1, so that they toggle as real data
// do: zeros take far less power.
#include <chrono>

#include "common.cuh"

constexpr int THREADS = 256, CHAINS = 4;

__global__ void light(long long cycles, double *ghz) {
    const unsigned long long ns = global_ns();
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
    ghz[blockIdx.x] = static_cast<double>(clock64() - start) / static_cast<double>(global_ns() - ns);
}

template <bool Sparse>
__global__ void tensor(long long cycles, double *ghz, float *sink) {
    float d[CHAINS][4] = {};
    unsigned a[4], b[4];
    unsigned state = 2463534242u + 977u * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = 0; i < 4; ++i) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        a[i] = (state & 0x83ff83ffu) | 0x38003800u;  // f16 pairs of either sign, 0.5 to 1
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        b[i] = (state & 0x83ff83ffu) | 0x38003800u;
    }
    const unsigned long long ns = global_ns();
    const long long start = clock64();
    while (clock64() - start < cycles) {
#pragma unroll
        for (int step = 0; step < 64; ++step) {
            float *c = d[step % CHAINS];
            if (Sparse)
                asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
                             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
                               "r"(0x44444444u));
            else
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }
    }
    float sum = 0;
    for (int chain = 0; chain < CHAINS; ++chain) sum += d[chain][0];
    sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0)
        ghz[blockIdx.x] = static_cast<double>(clock64() - start) / static_cast<double>(global_ns() - ns);
}

// Median clock over the second half of `seconds` of launches of 20 ms or so; the first half settles the temperature.
template <class Launch>
double sustained(int blocks, double *ghz, double seconds, Launch launch) {
    std::vector<double> found;
    const auto begin = std::chrono::steady_clock::now();
    double passed = 0;
    while (passed < seconds) {
        launch();
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (passed > seconds / 2) found.push_back(median(std::vector<double>(ghz, ghz + blocks)));
    }
    return median(found) * 1e3;
}

int main(int argc, char **argv) {
    const cudaDeviceProp board = open_device(argc, argv);
    const double seconds = argc > 2 ? std::atof(argv[2]) : 10.0;
    const int blocks = board.multiProcessorCount * 2;
    const long long cycles = 30'000'000;
    double *ghz;
    float *sink;
    CHECK(cudaMallocManaged(&ghz, blocks * sizeof *ghz));
    CHECK(cudaMalloc(&sink, blocks * THREADS * sizeof *sink));
    emit("clock.light", sustained(1, ghz, seconds / 4, [&] { light<<<1, 1>>>(cycles, ghz); }), "MHz");
    emit("clock.tensor", sustained(blocks, ghz, seconds, [&] { tensor<false><<<blocks, THREADS>>>(cycles, ghz, sink); }),
         "MHz");
    emit("clock.tensor_sparse",
         sustained(blocks, ghz, seconds, [&] { tensor<true><<<blocks, THREADS>>>(cycles, ghz, sink); }), "MHz");
    return 0;
}
