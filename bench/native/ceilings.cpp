// What this machine can do at best: arithmetic on registers alone, and reading of memory. For benchmarks only.
//
// Compiled for the processor at hand, over the same vectors as the kernels (csrc/vec_*.h), so that a ceiling is of the
// very operations that they use.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <vector>

#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vec_avx2.h"
#else
#include "vec_portable.h"
#endif

#define BENCH_UNROLL _Pragma("GCC unroll 16")

namespace {

using Clock = std::chrono::steady_clock;

// Sums kept in registers at once: as many as the product kernel keeps.
constexpr int kSums = 2 * kRowsAtOnce;

// What a thread runs, and with what; called by an address that the compiler does not know, so that no work moves out of
// the time that is taken.
struct Task {
  void (*volatile run)(const Task& task, int thread);
  int num_threads;
  long num_rounds;
  const float* memory;
  long num_floats;
};

// Where sums end, so that they count as wanted.
volatile float sink[256];

// All sums begin differently, or the compiler would keep one for all that are the same.
void dots(const Task& task, int thread) {
  alignas(64) uint8_t levels[128];
  for (int i = 0; i < 128; ++i) levels[i] = static_cast<uint8_t>(i + thread);
  const Bytes a = load_levels(levels), b = load_levels(levels + 64);
  int8_t four[4] = {3, -5, 7, static_cast<int8_t>(thread)};
  SmallDots sums[kSums];
BENCH_UNROLL
  for (int i = 0; i < kSums; ++i) {
    four[0] = static_cast<int8_t>(i + thread);
    sums[i] = dot(SmallDots{}, a, broadcast_activations(four));
  }
  const Bytes x = broadcast_activations(four);
  for (long round = 0; round < task.num_rounds; ++round) {
BENCH_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = dot(sums[i], i % 2 == 0 ? a : b, x);
  }
  int32_t total = 0;
BENCH_UNROLL
  for (int i = 0; i < kSums; ++i) total += sum(finish(sums[i], 0), finish(sums[i], 0));
  sink[thread % 256] = static_cast<float>(total);
}

void fmas(const Task& task, int thread) {
  const Floats a = broadcast(0.5f + thread), b = broadcast(0.25f);
  Floats sums[kSums];
BENCH_UNROLL
  for (int i = 0; i < kSums; ++i) sums[i] = broadcast(static_cast<float>(i + thread));
  for (long round = 0; round < task.num_rounds; ++round) {
BENCH_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = fma(a, b, sums[i]);
  }
  Floats total = zero();
BENCH_UNROLL
  for (int i = 0; i < kSums; ++i) total = add(total, sums[i]);
  sink[thread % 256] = largest(total);
}

// Each thread reads a part of its own.
void read(const Task& task, int thread) {
  const long each = task.num_floats / task.num_threads / 128 * 128;
  const float* part = task.memory + thread * each;
  Floats sums[8];
BENCH_UNROLL
  for (int i = 0; i < 8; ++i) sums[i] = zero();
  for (long pass = 0; pass < task.num_rounds; ++pass) {
    for (long at = 0; at < each; at += 128) {
BENCH_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] = larger(sums[i], load(part + at + 16 * i));
    }
  }
  Floats total = zero();
BENCH_UNROLL
  for (int i = 0; i < 8; ++i) total = larger(total, sums[i]);
  sink[thread % 256] = largest(total);
}

// Seconds from the first start to the last end, on all threads at once.
double seconds(const Task& task) {
  std::atomic<int> num_ready{0};
  std::vector<Clock::time_point> begun(task.num_threads), ended(task.num_threads);
  const auto work = [&](int thread) {
    ++num_ready;
    while (num_ready < task.num_threads) {}
    begun[thread] = Clock::now();
    task.run(task, thread);
    ended[thread] = Clock::now();
  };
  std::vector<std::thread> others;
  for (int i = 1; i < task.num_threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  const auto first = *std::min_element(begun.begin(), begun.end());
  return std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) - first).count();
}

}  // namespace

extern "C" {

// Sums that one round of the loops adds to: kSums vectors of sixteen, four products of bytes or one of floats each.
int bench_sums(void) { return kSums; }

double bench_dots(int num_threads, long num_rounds) { return seconds({dots, num_threads, num_rounds, nullptr, 0}); }

double bench_fmas(int num_threads, long num_rounds) { return seconds({fmas, num_threads, num_rounds, nullptr, 0}); }

double bench_read(const float* memory, long num_floats, int num_threads, int num_passes) {
  return seconds({read, num_threads, num_passes, memory, num_floats});
}
}
