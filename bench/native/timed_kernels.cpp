// The kernels timed: one by one, or within real steps. For benchmarks only.
//
// This library stands in for the kernels' own (HEADWAY_KERNELS): it is linked with that, and has another
// `headway_open`, whose engines note how long each call of a kernel took.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <vector>

#include "forward.h"

namespace {

using namespace headway;

const Kernels* kernels_of(const char* isa) {
  const char* name = isa != nullptr ? isa : headway_best_isa();
#if defined(__x86_64__)
  for (const Kernels* one : {&kAvx512Kernels, &kAvx2Kernels})
    if (std::strcmp(one->name, name) == 0) return one;
#endif
  return std::strcmp(kPortableKernels.name, name) == 0 ? &kPortableKernels : nullptr;
}

// ---------------------------------------------------------------- within steps

enum Part { kQuantize, kNormQuantize, kQkv, kOutputAndDown, kGateUp, kHeadProduct, kRotate, kAttend, kNumParts };

constexpr int kMostThreads = 256;

struct alignas(64) Times {
  int64_t ns[kNumParts];
  int64_t calls[kNumParts];
};

Times times[kMostThreads];
const Kernels* plain;

template <class F>
void timed(Part part, const F& f) {
  const auto begun = std::chrono::steady_clock::now();
  f();
  const auto took = std::chrono::steady_clock::now() - begun;
  Times& mine = times[Pool::worker() % kMostThreads];
  mine.ns[part] += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  ++mine.calls[part];
}

void quantize(const float* x, std::size_t stride, int first, int num_rows, const QuantRows& out) {
  timed(kQuantize, [&] { plain->quantize(x, stride, first, num_rows, out); });
}

void norm_quantize(const float* x, std::size_t stride, int first, int num_rows, const float* weight, float epsilon,
                   const QuantRows& out) {
  timed(kNormQuantize, [&] { plain->norm_quantize(x, stride, first, num_rows, weight, epsilon, out); });
}

void multiply(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
              const Destination& out) {
  constexpr Part parts[] = {kQkv, kOutputAndDown, kGateUp, kHeadProduct};
  timed(parts[static_cast<int>(out.output)], [&] { plain->multiply(x, first, num_rows, matrix, begin, end, out); });
}

void rotate_and_store(float* qkv, const HeadLayout& heads, const float* cosines, const float* sines, const KvLayer& cache,
                      int block, int slot) {
  timed(kRotate, [&] { plain->rotate_and_store(qkv, heads, cosines, sines, cache, block, slot); });
}

void attend(const float* qkv, std::size_t qkv_stride, const HeadLayout& heads, const KvLayer& cache,
            const AttentionTile& tile, const AttentionTile* next, int begin, int end, int window, float* out,
            std::size_t out_stride) {
  timed(kAttend,
        [&] { plain->attend(qkv, qkv_stride, heads, cache, tile, next, begin, end, window, out, out_stride); });
}

Kernels timed_kernels;

// ---------------------------------------------------------------- one by one

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

// Processor seconds of the best of some calls, on this thread.
template <class F>
double best_seconds(int num_repeats, const F& f) {
  double best = 1e30;
  for (int i = 0; i < num_repeats; ++i) {
    const double begun = thread_seconds();
    f();
    best = std::min(best, thread_seconds() - begun);
  }
  return best;
}

// Heads and a cache layer for single kernels, in which each request has blocks of its own.
struct Attention {
  HeadLayout heads;
  int num_requests, num_tokens, num_blocks;
  void* memory;
  KvLayer cache;
  std::vector<int32_t> tables;
  std::vector<float> qkv, out, cosines, sines;
  static constexpr int kBlockSize = 16;

  Attention(int num_heads, int num_kv_heads, int head_dim, bool is_half, int num_requests, int num_tokens, int num_rows)
      : heads{num_heads, num_kv_heads, head_dim, nullptr, nullptr, 1e-5f},
        num_requests(num_requests),
        num_tokens(num_tokens),
        num_blocks((num_tokens + kBlockSize - 1) / kBlockSize) {
    const std::size_t element = is_half ? 2 : 4;
    const std::size_t numbers = std::size_t{2} * num_kv_heads * kBlockSize * head_dim;
    const std::size_t size = numbers * num_requests * num_blocks * element;
    memory = aligned_memory(size);
    std::memset(memory, 0, size);
    cache = {memory, is_half, kBlockSize};
    for (int i = 0; i < num_requests * num_blocks; ++i) tables.push_back(i);
    qkv.assign(std::size_t(num_rows) * stride(), 0.5f);
    out.assign(std::size_t(num_rows) * num_heads * head_dim, 0.0f);
    cosines.assign(head_dim, 0.8f);
    sines.assign(head_dim, 0.6f);
  }
  ~Attention() { std::free(memory); }

  std::size_t stride() const { return std::size_t(heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim; }
};

}  // namespace

extern "C" {

void* headway_open(int32_t num_threads, const char* isa) {
  plain = kernels_of(isa);
  if (plain == nullptr) return nullptr;
  timed_kernels = {plain->name, quantize, norm_quantize, multiply, rotate_and_store, attend};
  return new Engine(num_threads, timed_kernels);
}

// Nanoseconds and calls of each `Part` since the last time, over all threads. Not to be called during a step.
void bench_take_times(int64_t* ns, int64_t* calls) {
  for (int part = 0; part < kNumParts; ++part) ns[part] = calls[part] = 0;
  for (Times& one : times) {
    for (int part = 0; part < kNumParts; ++part) {
      ns[part] += one.ns[part];
      calls[part] += one.calls[part];
    }
    one = {};
  }
}

// Processor seconds of one call of each kernel, the best of `num_repeats`. `isa` as for headway_open.

double bench_quantize(const char* isa, const float* x, int num_rows, int num_inputs, const float* norm, int num_repeats) {
  QuantScratch scratch;
  const QuantRows out = scratch.rows(num_rows, num_inputs);
  const Kernels& kernels = *kernels_of(isa);
  return best_seconds(num_repeats, [&] {
    if (norm != nullptr) kernels.norm_quantize(x, num_inputs, 0, num_rows, norm, 1e-5f, out);
    else kernels.quantize(x, num_inputs, 0, num_rows, out);
  });
}

// `output` is what becomes of the product: see `Output`.
double bench_multiply(const char* isa, const float* x, int num_rows, const HeadwayMatrix* matrix, int output,
                      int num_repeats) {
  QuantScratch scratch;
  const QuantRows rows = scratch.rows(num_rows, matrix->num_groups * kGroup);
  const Kernels& kernels = *kernels_of(isa);
  kernels.quantize(x, matrix->num_groups * kGroup, 0, num_rows, rows);
  const PackedMatrix packed{matrix->panels, matrix->bias, matrix->num_panels, matrix->num_groups, matrix->num_levels};
  const std::size_t stride = std::size_t(matrix->num_panels) * kColumns;
  const Output kind = static_cast<Output>(output);
  std::vector<float> out(kind == Output::kHead ? 0 : num_rows * stride), best(num_rows);
  std::vector<int32_t> columns(num_rows);
  const Destination to{kind, out.data(), stride, 0, static_cast<int>(stride), best.data(), columns.data()};
  return best_seconds(num_repeats, [&] {
    std::fill(best.begin(), best.end(), -1e30f);
    kernels.multiply(rows, 0, num_rows, packed, 0, packed.num_panels, to);
  });
}

double bench_rotate_and_store(const char* isa, int num_heads, int num_kv_heads, int head_dim, int is_half, int num_rows,
                              int num_repeats) {
  Attention a(num_heads, num_kv_heads, head_dim, is_half != 0, 1, num_rows, num_rows);
  const Kernels& kernels = *kernels_of(isa);
  return best_seconds(num_repeats, [&] {
    for (int r = 0; r < num_rows; ++r)
      kernels.rotate_and_store(a.qkv.data() + r * a.stride(), a.heads, a.cosines.data(), a.sines.data(), a.cache,
                               a.tables[r / a.kBlockSize], r % a.kBlockSize);
  });
}

// The last `num_queries` tokens of each of some requests of `num_tokens` look back.
double bench_attend(const char* isa, int num_heads, int num_kv_heads, int head_dim, int is_half, int num_requests,
                    int num_tokens, int num_queries, int num_repeats) {
  Attention a(num_heads, num_kv_heads, head_dim, is_half != 0, num_requests, num_tokens, num_requests * num_queries);
  std::vector<AttentionTile> tiles;
  const int each = std::max(1, kMaxQueries / (num_heads / num_kv_heads));
  for (int i = 0; i < num_requests; ++i)
    for (int done = 0; done < num_queries; done += each)
      tiles.push_back({a.tables.data() + i * a.num_blocks, i * num_queries + done, std::min(each, num_queries - done),
                       num_tokens - num_queries + done});
  const Kernels& kernels = *kernels_of(isa);
  const std::size_t width = std::size_t(num_heads) * head_dim;
  return best_seconds(num_repeats, [&] {
    for (std::size_t t = 0; t < tiles.size(); ++t)
      kernels.attend(a.qkv.data(), a.stride(), a.heads, a.cache, tiles[t], t + 1 < tiles.size() ? &tiles[t + 1] : nullptr,
                     0, num_kv_heads, 0, a.out.data(), width);
  });
}
}
