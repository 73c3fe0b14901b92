// Issue interval and latency of mma.sync and mma.sp, per sub-core, in SM cycles.
//
// One CTA on one SM. Interval: two warps per sub-core, each with four independent accumulators, so that the datapath
// never waits for a result; elapsed cycles over the instructions that one sub-core issued. Latency: one warp whose
// every instruction takes the accumulator of the one before.
#include "common.cuh"

constexpr int WARPS_PER_SUBCORE = 2, SUBCORES = 4, CHAINS = 4, ROUNDS = 2048, REPEATS = 9;

#define MMA_4(CONSTRAINT, NAME, ...)                                                                    \
    asm volatile(NAME " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                \
                 : "+" CONSTRAINT(d[0]), "+" CONSTRAINT(d[1]), "+" CONSTRAINT(d[2]), "+" CONSTRAINT(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define SPARSE_4(CONSTRAINT, NAME, ...)                                                                 \
    asm volatile(NAME " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;" \
                 : "+" CONSTRAINT(d[0]), "+" CONSTRAINT(d[1]), "+" CONSTRAINT(d[2]), "+" CONSTRAINT(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(e))

// An instruction: its accumulator type and registers, its uncompressed K, and how it is issued.
#define OP(STRUCT, LABEL, ACC_TYPE, DEPTH, SPARSE, LEAST_CC, BODY)                                      \
    struct STRUCT {                                                                                     \
        using Acc = ACC_TYPE;                                                                           \
        static constexpr const char *label = LABEL;                                                     \
        static constexpr int k = DEPTH, least_cc = LEAST_CC;                                            \
        static constexpr bool sparse = SPARSE;                                                          \
        __device__ static void issue(Acc *d, const unsigned *a, const unsigned *b, unsigned e) { BODY; } \
    };

#define SP "mma.sp::ordered_metadata.sync.aligned."
#define MM "mma.sync.aligned."
OP(DenseF16F32, "f16_f32", float, 16, false, 80, MMA_4("f", MM "m16n8k16.row.col.f32.f16.f16.f32"))
OP(SparseF16F32, "f16_f32", float, 32, true, 80, SPARSE_4("f", SP "m16n8k32.row.col.f32.f16.f16.f32"))
OP(DenseBf16F32, "bf16_f32", float, 16, false, 80, MMA_4("f", MM "m16n8k16.row.col.f32.bf16.bf16.f32"))
OP(SparseBf16F32, "bf16_f32", float, 32, true, 80, SPARSE_4("f", SP "m16n8k32.row.col.f32.bf16.bf16.f32"))
OP(DenseTf32, "tf32", float, 8, false, 80, MMA_4("f", MM "m16n8k8.row.col.f32.tf32.tf32.f32"))
OP(SparseTf32, "tf32", float, 16, true, 80, SPARSE_4("f", SP "m16n8k16.row.col.f32.tf32.tf32.f32"))
OP(DenseI8, "i8", int, 32, false, 80, MMA_4("r", MM "m16n8k32.row.col.s32.s8.s8.s32"))
OP(SparseI8, "i8", int, 64, true, 80, SPARSE_4("r", SP "m16n8k64.row.col.s32.s8.s8.s32"))
OP(DenseF16F16, "f16_f16", unsigned, 16, false, 80,
   asm volatile(MM "m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                : "+r"(d[0]), "+r"(d[1])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])))
OP(SparseF16F16, "f16_f16", unsigned, 32, true, 80,
   asm volatile(SP "m16n8k32.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7, %8, %9}, {%0, %1}, %10, 0x0;"
                : "+r"(d[0]), "+r"(d[1])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(e)))
// half the depth: on some parts it issues no faster than the full one, which is the floor of the sparse interval
OP(SmallSparseF16F32, "f16_f32_small", float, 16, true, 80,
   asm volatile(SP "m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3}, %8, 0x0;"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(e)))
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
OP(DenseE4m3, "e4m3_f32", float, 32, false, 89, MMA_4("f", MM "m16n8k32.row.col.f32.e4m3.e4m3.f32"))
OP(SparseE4m3, "e4m3_f32", float, 64, true, 89, SPARSE_4("f", SP "m16n8k64.row.col.f32.e4m3.e4m3.f32"))
#else
OP(DenseE4m3, "e4m3_f32", float, 32, false, 89, )
OP(SparseE4m3, "e4m3_f32", float, 64, true, 89, )
#endif

template <class Op, int N>
__global__ void issue_loop(unsigned seed, int rounds, long long *cycles, typename Op::Acc *sink) {
    typename Op::Acc d[N][4] = {};
    unsigned a[4], b[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = seed * (threadIdx.x + 7 * i + 1);
        b[i] = seed * (threadIdx.x + 11 * i + 3);
    }
    const unsigned e = 0x44444444u;  // the first two of every four are kept
    __syncthreads();
    const long long start = clock64();
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int chain = 0; chain < N; ++chain) Op::issue(d[chain], a, b, e);
    }
    // the sum waits for every result before the clock is read
    typename Op::Acc sum = 0;
#pragma unroll
    for (int chain = 0; chain < N; ++chain) sum += d[chain][0] + d[chain][1];
    sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
}

template <class Op, int N>
double cycles_per_round(int warps) {
    long long *cycles;
    typename Op::Acc *sink;
    CHECK(cudaMallocManaged(&cycles, sizeof *cycles));
    CHECK(cudaMalloc(&sink, warps * 32 * sizeof *sink));
    std::vector<double> found;
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        // two lengths: their difference is free of the loop's start and end
        double took[2];
        for (int half = 0; half < 2; ++half) {
            issue_loop<Op, N><<<1, warps * 32>>>(0x3c003c00u, ROUNDS << half, cycles, sink);
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            took[half] = static_cast<double>(*cycles);
        }
        found.push_back((took[1] - took[0]) / ROUNDS);
    }
    CHECK(cudaFree(cycles));
    CHECK(cudaFree(sink));
    return median(found);
}

template <class Op>
void measure(const cudaDeviceProp &board) {
    if (board.major * 10 + board.minor < Op::least_cc) return;
    char name[64];
    const char *path = Op::sparse ? "mma_sp" : "mma";
    const double round = cycles_per_round<Op, CHAINS>(WARPS_PER_SUBCORE * SUBCORES);
    std::snprintf(name, sizeof name, "%s.interval.%s.k%d", path, Op::label, Op::k);
    emit(name, round / (WARPS_PER_SUBCORE * CHAINS), "clk");
    std::snprintf(name, sizeof name, "%s.latency.%s.k%d", path, Op::label, Op::k);
    emit(name, cycles_per_round<Op, 1>(1), "clk");
}

int main(int argc, char **argv) {
    const cudaDeviceProp board = open_device(argc, argv);
    measure<DenseF16F32>(board);
    measure<SparseF16F32>(board);
    measure<SmallSparseF16F32>(board);
    measure<DenseF16F16>(board);
    measure<SparseF16F16>(board);
    measure<DenseBf16F32>(board);
    measure<SparseBf16F32>(board);
    measure<DenseTf32>(board);
    measure<SparseTf32>(board);
    measure<DenseI8>(board);
    measure<SparseI8>(board);
    measure<DenseE4m3>(board);
    measure<SparseE4m3>(board);
    return 0;
}
