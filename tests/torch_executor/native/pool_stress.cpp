// Runs jobs of changing size, one after the other, and counts how often each item ran.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "pool.h"

int main(int, char** argv) {
  constexpr int kMost = 64;
  headway::Pool pool(std::atoi(argv[1]));
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::atoi(argv[2]));
  long num_jobs = 0;
  do {
    for (int i = 0; i < 1000; ++i, ++num_jobs) {
      const int num_items = num_jobs % 2 == 0 ? 2 + num_jobs / 2 % 3 : kMost - num_jobs % 16;
      std::array<std::atomic<int>, kMost> counts{};
      pool.run(num_items, [&](int item) { counts[item].fetch_add(1, std::memory_order_relaxed); });
      for (int item = 0; item < kMost; ++item) {
        if (counts[item] == (item < num_items)) continue;
        std::printf("job %ld of %d items: item %d ran %d times\n", num_jobs, num_items, item, counts[item].load());
        return 1;
      }
    }
  } while (std::chrono::steady_clock::now() < until);
  std::printf("%ld jobs\n", num_jobs);
}
