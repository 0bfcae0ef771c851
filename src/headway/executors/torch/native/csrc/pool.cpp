#include "pool.h"

#include <chrono>

namespace headway {
namespace {

// Longer than the gaps inside a step, shorter than anybody would notice between steps.
constexpr auto kSpinTime = std::chrono::microseconds(200);
constexpr int kSpinsPerLook = 64;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

thread_local int Pool::worker_ = 0;

Pool::Pool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] {
      worker_ = i;
      live();
    });
  }
}

Pool::~Pool() {
  stops_ = true;
  present_.fetch_add(1);
  present_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::start(Function function, const void* context, int num_items) {
  const uint32_t job_id = present_.load(std::memory_order_relaxed) + 1;
  // No claim can succeed between here and the new job: the last one has no item left.
  job_.function.store(function, std::memory_order_relaxed);
  job_.context.store(context, std::memory_order_relaxed);
  job_.num_items.store(num_items, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  next_.store(static_cast<uint64_t>(job_id) << 32 | static_cast<uint32_t>(num_items), std::memory_order_release);
  present_.store(job_id, std::memory_order_seq_cst);
  if (num_asleep_.load(std::memory_order_seq_cst) > 0) present_.notify_all();
  work(job_id);
  for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_items; ++spins) {
    // The one who has the last item may not be running: give way to it.
    if (spins < 4096) pause();
    else std::this_thread::yield();
  }
}

// Runs items of that job while there are any. False if it was over before this thread came.
bool Pool::work(uint32_t job_id) {
  bool any = false;
  uint64_t ticket = next_.load(std::memory_order_acquire);
  while (true) {
    if (static_cast<uint32_t>(ticket >> 32) != job_id) return any;
    const int num_left = static_cast<int>(ticket & 0xFFFFFFFFu);
    if (num_left == 0) return any;
    const Function function = job_.function.load(std::memory_order_relaxed);
    const void* context = job_.context.load(std::memory_order_relaxed);
    const int num_items = job_.num_items.load(std::memory_order_relaxed);
    // What was read above belongs to this job if the claim succeeds, and is thrown away if it does not.
    if (!next_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    function(context, num_items - num_left);
    num_done_.fetch_add(1, std::memory_order_release);
    any = true;
    ticket = next_.load(std::memory_order_acquire);
  }
}

void Pool::live() {
  uint32_t seen = 0;
  while (true) {
    const auto until = std::chrono::steady_clock::now() + kSpinTime;
    while (present_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < until)
      for (int i = 0; i < kSpinsPerLook && present_.load(std::memory_order_relaxed) == seen; ++i) pause();
    if (present_.load(std::memory_order_acquire) == seen) {
      num_asleep_.fetch_add(1, std::memory_order_seq_cst);
      present_.wait(seen, std::memory_order_seq_cst);
      num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stops_) return;
    seen = present_.load(std::memory_order_acquire);
    work(seen);
  }
}

}  // namespace headway
