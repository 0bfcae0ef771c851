// A whole step of the decoder, from token ids to logits.
#pragma once
#include <cstdlib>
#include <vector>

#include "headway.h"
#include "kernels.h"
#include "pool.h"

namespace headway {

// To be freed with std::free.
void* aligned_memory(std::size_t size);

// Memory that grows and is never given back, aligned for vectors, in huge pages where the system has them.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* get(std::size_t count) {
    if (count > capacity_) {
      std::free(data_);
      data_ = static_cast<T*>(aligned_memory(count * sizeof(T)));
      capacity_ = count;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

struct QuantScratch {
  Scratch<TileGroup> groups;
  QuantRows rows(int num_rows, int num_inputs);
};

// What a thread needs for the rows that it works on.
struct BlockScratch {
  Scratch<float> gated;
  QuantScratch normed, mixed_bytes, gated_bytes;
};

// A row's position in its request, and where its keys and values go.
struct RowPlace {
  int position, block, slot;
};

struct Engine {
  Pool pool;
  const Kernels& kernels;
  Scratch<float> hidden, qkv, mixed, sampled_hidden, sampled_mixed, best_values;
  Scratch<int32_t> best_columns;
  Scratch<RowPlace> places;
  Scratch<AttentionTile> tiles;
  Scratch<bool> wanted;
  std::vector<BlockScratch> scratch;

  Engine(int num_threads, const Kernels& kernels) : pool(num_threads), kernels(kernels), scratch(num_threads) {}
};

void forward(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step);
void attend_rows(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step, int layer,
                 const float* qkv, std::size_t qkv_stride, float* out);
// All rows of x times all of the matrix, shared out over the threads.
void multiply(Engine& engine, const QuantRows& x, int num_rows, const HeadwayMatrix& matrix, const Destination& out);

}  // namespace headway
