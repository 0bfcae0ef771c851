// A few threads that run the items of one job after the other.
//
// The caller works too. Items are claimed one by one, so that a thread that the system has put aside holds nobody up:
// `run` waits for items that were claimed, never for threads that claimed none.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace headway {

class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Which of a pool's threads this is: 0 for whoever calls `run`.
  static int worker() { return worker_; }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(0) to f(num_items - 1), in any order and on any thread, and returns when all are done.
  template <class F>
  void run(int num_items, const F& f) {
    if (num_items <= 1 || workers_.empty()) {
      for (int i = 0; i < num_items; ++i) f(i);
      return;
    }
    start([](const void* context, int item) { (*static_cast<const F*>(context))(item); }, &f, num_items);
  }

 private:
  using Function = void (*)(const void* context, int item);

  struct Job {
    std::atomic<Function> function;
    std::atomic<const void*> context;
    std::atomic<int> num_items;
  };

  void start(Function function, const void* context, int num_items);
  bool work(uint32_t job_id);
  void live();
  static thread_local int worker_;

  // The present job's number in the upper half, how many of its items nobody has claimed in the lower. A claim can only
  // succeed while its job is the present one and has such an item; and as long as it has, the caller waits in `start`,
  // and nothing that the claim's thread has read of the job can have changed. Were the number of items kept apart, a
  // thread that is late could find that of the next job beside the last ticket of this one, and claim what never was.
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<int> num_done_{0};
  alignas(64) std::atomic<uint32_t> present_{0};
  std::atomic<int> num_asleep_{0};
  std::atomic<bool> stops_{false};
  Job job_;
  std::vector<std::thread> workers_;
};

}  // namespace headway
