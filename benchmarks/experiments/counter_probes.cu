// Small kernels of which each does one thing, to see what a counter counts.

// Every warp copies `rounds` times 32 neighbouring pieces into shared memory, each time to another place.
#define COPY(NAME, BYTES, CACHE)                                                                          \
  extern "C" __global__ void NAME(const char* source, int to_shift, int from_shift, int rounds) {           \
    extern __shared__ __align__(1024) char tile[];                                                         \
    unsigned base = (unsigned)__cvta_generic_to_shared(tile);                                              \
    unsigned piece = threadIdx.x * BYTES, slice = blockDim.x * BYTES;                                      \
    for (int r = 0; r < rounds; ++r) {                                                                     \
      const char* from = source + from_shift + ((size_t)blockIdx.x * rounds + r) * slice + piece;          \
      unsigned to = base + to_shift + r * slice + piece;                                                   \
      asm volatile("cp.async." CACHE ".shared.global [%0], [%1], " #BYTES ";" ::"r"(to), "l"(from));       \
    }                                                                                                      \
    asm volatile("cp.async.commit_group; cp.async.wait_all;");                                             \
  }
COPY(copy_4, 4, "ca")
COPY(copy_8, 8, "ca")
COPY(copy_16_through_l1, 16, "ca")
COPY(copy_16, 16, "cg")

// Stores of results, and no shared memory.
extern "C" __global__ void store(float* out, int rounds) {
  for (int r = 0; r < rounds; ++r) out[((size_t)blockIdx.x * rounds + r) * blockDim.x + threadIdx.x] = r;
}

// Stores into shared memory without conflicts: alone, or beside loads that fill the L1 cache or pass it by.
#define STORES(NAME, LOAD)                                                                                \
  extern "C" __global__ void NAME(const float* in, float* sink, int rounds) {                              \
    extern __shared__ float words[];                                                                       \
    volatile float* to = words;                                                                            \
    float sum = 0, value = 1;                                                                              \
    const float* from = in + (size_t)blockIdx.x * rounds * blockDim.x + threadIdx.x;                       \
    for (int r = 0; r < rounds; ++r) {                                                                     \
      LOAD;                                                                                                \
      to[threadIdx.x] = r;                                                                                 \
      sum += value;                                                                                        \
    }                                                                                                      \
    if (sum == 12345.f) *sink = sum + to[0];                                                               \
  }
STORES(shared_stores, )
STORES(shared_stores_beside_loads_past_l1, asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from + (size_t)r * blockDim.x)))
STORES(shared_stores_beside_loads, asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(value) : "l"(from + (size_t)r * blockDim.x)))

// `turns` times over `count` vectors: each CTA all of them, or each its share.
#define READS(NAME, FIRST, LAST)                                                                          \
  extern "C" __global__ void NAME(const float4* in, float* sink, long long count, int turns) {             \
    float sum = 0, value;                                                                                  \
    long long first = FIRST, last = LAST;                                                                  \
    for (int t = 0; t < turns; ++t)                                                                        \
      for (long long i = first + threadIdx.x; i < last; i += blockDim.x) {                                 \
        asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(in + i));                            \
        sum += value;                                                                                      \
      }                                                                                                    \
    if (sum == 12345.f) *sink = sum;                                                                       \
  }
READS(read_all, 0, count)
READS(read_share, count * blockIdx.x / gridDim.x, count * (blockIdx.x + 1) / gridDim.x)
