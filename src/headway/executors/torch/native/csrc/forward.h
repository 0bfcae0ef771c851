// A whole step of the decoder, from token ids to logits.
#pragma once
#include <vector>

#include "headway.h"
#include "kernels.h"
#include "pool.h"

namespace headway {

// Memory that grows and is never given back, aligned for vectors.
template <class T>
class Scratch {
 public:
  ~Scratch() { release(); }
  T* get(std::size_t count);

 private:
  void release();
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

struct QuantScratch {
  Scratch<int8_t> bytes;
  Scratch<float> scales;
  Scratch<int32_t> sums;
  Scratch<float> totals;
  QuantRows rows(int num_rows, int num_inputs);
};

struct Engine {
  Pool pool;
  const Kernels& kernels;
  Scratch<float> hidden, qkv, mixed, gated, best_values;
  Scratch<int32_t> best_columns, span_of_row;
  // One for each width: threads that are at different parts of a layer must not meet in one buffer.
  QuantScratch normed_bytes, mixed_bytes, gated_bytes;

  Engine(int num_threads, const Kernels& kernels) : pool(num_threads), kernels(kernels) {}
};

void forward(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step);
void attend_rows(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step, int layer,
                 const float* qkv, std::size_t qkv_stride, float* out);
PackedMatrix packed(const HeadwayMatrix& matrix);

}  // namespace headway
