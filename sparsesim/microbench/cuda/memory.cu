// Bandwidth and latency of shared memory, L2 and device memory.
#include "common.cuh"

constexpr int THREADS = 1024, REPEATS = 9, CHASE = 4096, LINE = 128;

// Bytes that one SM reads from its shared memory, 16 a thread and step, without bank conflicts.
__global__ void shared_read(int rounds, long long *cycles, float *sink) {
    extern __shared__ float4 tile[];
    tile[threadIdx.x] = make_float4(threadIdx.x, 1, 2, 3);
    __syncthreads();
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile + threadIdx.x));
    float sum = 0;
    const long long start = clock64();
    for (int round = 0; round < rounds; ++round) {
        float x[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[i][0]), "=f"(x[i][1]), "=f"(x[i][2]), "=f"(x[i][3])
                         : "r"(at));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += x[i][0];
    }
    sink[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) *cycles = clock64() - start;
}

__global__ void shared_chase(int rounds, long long *cycles, int *sink) {
    __shared__ unsigned next[256];
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(next));
    for (int i = 0; i < 256; ++i) next[i] = base + 4 * ((i * 37 + 11) % 256);
    unsigned at = base;
    const long long start = clock64();
    for (int round = 0; round < rounds; ++round) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
    *sink = at;
    *cycles = clock64() - start;
}

// All threads read `count` 16-byte words `passes` times past L1; each pass begins elsewhere, so that no line is read by
// all SMs at once.
__global__ void global_read(const uint4 *data, size_t count, int passes, long long *cycles, unsigned *sink) {
    const size_t all = static_cast<size_t>(gridDim.x) * blockDim.x;
    const size_t own = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    const long long start = clock64();
    for (int pass = 0; pass < passes; ++pass) {
        const size_t shift = static_cast<size_t>(pass) * 977 * blockDim.x % count;
#pragma unroll 4
        for (size_t i = own; i < count; i += all) {
            size_t at = i + shift;
            at = at >= count ? at - count : at;
            uint4 x;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "l"(data + at));
            sum += x.x;
        }
    }
    if (sum == 0xffffffffu) sink[0] = sum;
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
}

// One thread follows a chain of addresses past L1, and notes how long each load took.
__global__ void global_chase(unsigned long long *first, int steps, unsigned *took, unsigned long long *ns,
                             long long *cycles) {
    __shared__ unsigned long long seen[64];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(seen));
    unsigned long long at = reinterpret_cast<unsigned long long>(first);
    const unsigned long long ns0 = global_ns();
    const long long begin = clock64();
    for (int step = 0; step < steps; ++step) {
        const long long start = clock64();
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at)::"memory");
        // a warp issues in order, so the clock is read once the store has the loaded value
        asm volatile("st.shared.u64 [%0], %1;" ::"r"(slots + 8 * (step % 64)), "l"(at) : "memory");
        const long long end = clock64();
        took[step] = static_cast<unsigned>(end - start);
    }
    *cycles = clock64() - begin;
    *ns = global_ns() - ns0;
}

// A ring of one pointer per line through `bytes`, in an order that no prefetcher follows.
static unsigned long long *ring(size_t bytes, int steps) {
    char *base;
    CHECK(cudaMalloc(&base, bytes));
    const size_t lines = bytes / LINE;
    std::vector<size_t> order(steps);
    unsigned long long state = 88172645463325252ull;
    for (int i = 0; i < steps; ++i) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        order[i] = state % lines;
    }
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (size_t i = order.size() - 1; i > 0; --i) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(order[i], order[state % (i + 1)]);
    }
    for (size_t i = 0; i < order.size(); ++i) {
        const unsigned long long next = reinterpret_cast<unsigned long long>(base + order[(i + 1) % order.size()] * LINE);
        CHECK(cudaMemcpy(base + order[i] * LINE, &next, sizeof next, cudaMemcpyHostToDevice));
    }
    return reinterpret_cast<unsigned long long *>(base + order[0] * LINE);
}

static void chase(const char *name, size_t bytes, bool warm, size_t flush_bytes) {
    unsigned *took;
    unsigned long long *ns;
    long long *cycles;
    char *flush;
    CHECK(cudaMallocManaged(&took, CHASE * sizeof *took));
    CHECK(cudaMallocManaged(&ns, sizeof *ns));
    CHECK(cudaMallocManaged(&cycles, sizeof *cycles));
    CHECK(cudaMalloc(&flush, flush_bytes));
    unsigned long long *first = ring(bytes, CHASE);
    std::vector<double> found;
    double ghz = 0, mean = 0;
    for (int repeat = 0; repeat < (warm ? 4 : 1); ++repeat) {
        if (!warm) CHECK(cudaMemset(flush, repeat, flush_bytes));
        global_chase<<<1, 1>>>(first, CHASE / 2, took, ns, cycles);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        if (warm && repeat == 0) continue;  // fills L2
        for (int i = 64; i < CHASE / 2; ++i) found.push_back(took[i]);
        ghz = static_cast<double>(*cycles) / static_cast<double>(*ns);
        mean = static_cast<double>(*cycles) / (CHASE / 2);
    }
    char label[64];
    for (double share : {0.1, 0.5, 0.9}) {
        std::snprintf(label, sizeof label, "%s.latency.p%d", name, static_cast<int>(share * 100));
        emit(label, quantile(found, share), "clk");
    }
    // the whole chain over its steps: latency, the two clocks and the stores
    std::snprintf(label, sizeof label, "%s.latency.step", name);
    emit(label, mean, "clk");
    std::snprintf(label, sizeof label, "%s.latency.clock", name);
    emit(label, ghz, "GHz");
    CHECK(cudaFree(flush));
    CHECK(cudaFree(took));
    CHECK(cudaFree(ns));
    CHECK(cudaFree(cycles));
}

static void bandwidth(const cudaDeviceProp &board, const char *name, size_t bytes, int passes) {
    uint4 *data;
    long long *cycles;
    unsigned *sink;
    const int blocks = board.multiProcessorCount * std::max(board.maxThreadsPerMultiProcessor / THREADS, 1);
    CHECK(cudaMalloc(&data, bytes));
    CHECK(cudaMemset(data, 1, bytes));
    CHECK(cudaMallocManaged(&cycles, blocks * sizeof *cycles));
    CHECK(cudaMalloc(&sink, sizeof *sink));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<double> per_clk, per_s;
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        CHECK(cudaEventRecord(start));
        global_read<<<blocks, THREADS>>>(data, bytes / sizeof *data, passes, cycles, sink);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(end));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        const double moved = static_cast<double>(bytes) * passes;
        if (repeat == 0) continue;
        per_clk.push_back(moved / static_cast<double>(*std::max_element(cycles, cycles + blocks)));
        per_s.push_back(moved / (ms * 1e-3));
    }
    char label[64];
    std::snprintf(label, sizeof label, "%s.bandwidth", name);
    emit(label, median(per_clk), "B/clk");
    std::snprintf(label, sizeof label, "%s.bandwidth_s", name);
    emit(label, median(per_s), "B/s");
    CHECK(cudaFree(data));
    CHECK(cudaFree(cycles));
    CHECK(cudaFree(sink));
}

static void shared(int rounds) {
    long long *cycles;
    float *sink;
    CHECK(cudaMallocManaged(&cycles, sizeof *cycles));
    CHECK(cudaMalloc(&sink, THREADS * sizeof *sink));
    std::vector<double> read, chased;
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        double took[2];
        for (int half = 0; half < 2; ++half) {
            shared_read<<<1, THREADS, THREADS * sizeof(float4)>>>(rounds << half, cycles, sink);
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            took[half] = static_cast<double>(*cycles);
        }
        read.push_back(4.0 * sizeof(float4) * THREADS * rounds / (took[1] - took[0]));
        for (int half = 0; half < 2; ++half) {
            shared_chase<<<1, 1>>>(rounds << half, cycles, reinterpret_cast<int *>(sink));
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            took[half] = static_cast<double>(*cycles);
        }
        chased.push_back((took[1] - took[0]) / rounds);
    }
    emit("smem.bandwidth", median(read), "B/clk");
    emit("smem.latency", median(chased), "clk");
    CHECK(cudaFree(cycles));
    CHECK(cudaFree(sink));
}

int main(int argc, char **argv) {
    const cudaDeviceProp board = open_device(argc, argv);
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    const size_t l2 = std::max(board.l2CacheSize, 1 << 20);
    const size_t large = std::min(free_bytes / 4, static_cast<size_t>(4) << 30) / 4096 * 4096;
    shared(4096);
    // a quarter of L2: resident in every partition, even where lines are kept in both
    bandwidth(board, "l2", l2 / 4 / 4096 * 4096, 64);
    bandwidth(board, "dram", large, 1);
    chase("l2", std::min(l2 / 8, static_cast<size_t>(2) << 20), true, l2);
    chase("dram", std::min(large, static_cast<size_t>(512) << 20), false, 2 * l2);
    return 0;
}
