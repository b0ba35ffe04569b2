// The main loop of a product by mma.sync, part by part: 8 warps, each 64 x 64 sums, slices of 64 of K in bfloat16.
// What a CTA of 128 x 256 does for a slice, without the parts that are left out. Nothing of it is a whole product.

constexpr int THREADS = 256, STAGES = 4, LINE = 128, LINES = 128 + 256, STAGE = LINES * LINE, STEPS = 4;

__device__ __forceinline__ void read4(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(address));
}

__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Fragments of 64 rows of A, or columns of B, and 16 of K.
__device__ __forceinline__ void fragments(unsigned (&words)[4][4], unsigned base, int step) {
  for (int i = 0; i < 4; ++i) read4(words[i], (base ^ (step * 32)) + i * 16 * LINE);
}

// How warps wait for each other once a slice: not at all, at one place, or by saying so one step before they wait.
enum Wait { NONE, AT_ONCE, SPLIT };

__device__ __forceinline__ void await(unsigned barrier, unsigned parity) {
  asm volatile("{ .reg .pred done; again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1; @!done bra again; }"
               ::"r"(barrier), "r"(parity) : "memory");
}

template <bool READS, bool COPIES, Wait WAIT>
__device__ __forceinline__ void loop(const char* source, float* out, long long* clocks, int slices) {
  extern __shared__ __align__(1024) char tile[];
  __shared__ __align__(8) unsigned long long all_there;
  const unsigned barrier = (unsigned)__cvta_generic_to_shared(&all_there);
  const unsigned base = (unsigned)__cvta_generic_to_shared(tile), tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  for (unsigned byte = tid * 16; byte < STAGES * STAGE; byte += THREADS * 16)
    *(uint4*)(tile + byte) = *(const uint4*)(source + byte);
  if (tid == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(THREADS / 32));
  __syncthreads();
  // A lane's row of a fragment, and its 16 bytes, swizzled by the row.
  const unsigned line = lane % 16, chunk = lane / 16;
  const unsigned place = line * LINE + ((chunk ^ (line % 8)) * 16);
  const unsigned a0 = base + warp / 4 * 64 * LINE + place, b0 = base + (128 + warp % 4 * 64) * LINE + place;
  unsigned a[2][4][4], b[2][4][4];
  float sums[4][8][4] = {};
  for (int half = 0; half < 2; ++half) {
    fragments(a[half], a0, half);
    fragments(b[half], b0, half);
  }
  // The lines that this thread copies: every 32nd, 16 bytes of each. CTAs read what others read too, as in a product.
  const char* from = source + (blockIdx.x % 16) * STAGE + tid * 16;
  const unsigned to = base + tid / 8 * LINE + ((tid % 8) ^ (tid / 8 % 8)) * 16;
  const long long start = clock64();
  // Copies go to the stage that was read last, behind the wait that says so: in three steps, from FIRST on.
  constexpr int FIRST = WAIT == SPLIT ? STEPS - 1 : 0, PIECES = LINES / 32;
  unsigned stage = 0, into = 0;
  for (int s = 0; s < slices; ++s) {
    const unsigned next = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (WAIT == SPLIT && step == STEPS - 2) {
        if (COPIES) asm volatile("cp.async.wait_group 1;");
        __syncwarp();
        if (lane == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
      }
      if (step == STEPS - 1) {
        if (COPIES && WAIT != SPLIT) asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        if (WAIT == AT_ONCE) __syncthreads();
        if (WAIT == SPLIT) await(barrier, s % 2);
      }
      if (READS) {
        const unsigned from_stage = step == STEPS - 1 ? next : stage;
        fragments(a[(step + 1) % 2], a0 + from_stage, (step + 1) % STEPS);
        fragments(b[(step + 1) % 2], b0 + from_stage, (step + 1) % STEPS);
      }
      const int part = (step + STEPS - FIRST) % STEPS;
      if (COPIES && part < 3) {
        if (part == 0) into = stage == 0 ? (STAGES - 1) * STAGE : stage - STAGE;
#pragma unroll
        for (int piece = part * PIECES / 3; piece < (part + 1) * PIECES / 3; ++piece)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                       ::"r"(to + into + piece * 32 * LINE), "l"(from + piece * 32 * LINE));
        if (part == 2) asm volatile("cp.async.commit_group;");
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int j = i % 2 ? 7 - n : n;
          const unsigned(&words)[4] = b[step % 2][j / 2];
          multiply(sums[i][j], a[step % 2][i], words[j % 2], words[j % 2 + 2]);
        }
    }
    stage = next;
  }
  const long long took = clock64() - start;
  float total = 0;
  for (auto& row : sums)
    for (auto& four : row)
      for (float value : four) total += value;
  out[blockIdx.x * THREADS + tid] = total;
  if (tid == 0) clocks[blockIdx.x] = took;
}

#define PART(NAME, ...)                                                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                          \
      NAME(const char* source, float* out, long long* clocks, int slices) {                                         \
    loop<__VA_ARGS__>(source, out, clocks, slices);                                                                 \
  }
PART(products, false, false, NONE)
PART(products_and_fragments, true, false, NONE)
PART(products_fragments_and_waits, true, false, AT_ONCE)
PART(products_fragments_and_copies, true, true, NONE)
PART(all_of_it, true, true, AT_ONCE)
PART(all_of_it_with_waits_split, true, true, SPLIT)
