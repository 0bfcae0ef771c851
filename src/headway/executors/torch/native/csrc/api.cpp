#include <atomic>
#include <cstring>

#include "forward.h"
#include "headway.h"
#include "packing.h"

namespace {

using headway::Engine;
using headway::Kernels;
using headway::kColumns;
using headway::kGroup;
using headway::PackedMatrix;
using headway::WeightSource;

// The versions that this processor can run, best first.
int available(const Kernels* out[3]) {
  int count = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    out[count++] = &headway::kAvx512Kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    out[count++] = &headway::kAvx2Kernels;
#endif
  out[count++] = &headway::kPortableKernels;
  return count;
}

}  // namespace

extern "C" {

int headway_abi(void) { return HEADWAY_ABI; }

const char* headway_best_isa(void) {
  const Kernels* versions[3];
  available(versions);
  return versions[0]->name;
}

void* headway_open(int32_t num_threads, const char* isa) {
  const Kernels* versions[3];
  const int count = available(versions);
  for (int i = 0; i < count; ++i)
    if (isa == nullptr || std::strcmp(versions[i]->name, isa) == 0) return new Engine(num_threads, *versions[i]);
  return nullptr;
}

void headway_close(void* engine) { delete static_cast<Engine*>(engine); }

int32_t headway_levels(void* engine, const float* weights, int32_t num_outputs, int32_t num_inputs) {
  const WeightSource source{weights, num_outputs, num_inputs, false};
  std::atomic<bool> fits{true};
  static_cast<Engine*>(engine)->pool.run(source.num_panels(), [&](int panel) {
    if (fits.load(std::memory_order_relaxed) && !headway::fits_sixteen_levels(source, panel)) fits = false;
  });
  return fits ? 16 : 256;
}

size_t headway_packed_bytes(int32_t num_outputs, int32_t num_inputs, int32_t num_levels) {
  const WeightSource source{nullptr, num_outputs, num_inputs, false};
  return static_cast<size_t>(source.num_panels()) * (num_inputs / kGroup) * PackedMatrix::group_bytes(num_levels);
}

void headway_pack(void* engine, const float* weights, int32_t num_outputs, int32_t num_inputs, int32_t num_levels,
                  int32_t gated, uint8_t* out) {
  const WeightSource source{weights, num_outputs, num_inputs, gated != 0};
  static_cast<Engine*>(engine)->pool.run(
      source.num_panels(), [&](int panel) { headway::pack_panel(source, num_levels, panel, out); });
}

void headway_forward(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step) {
  headway::forward(*static_cast<Engine*>(engine), *model, *cache, *step);
}

void headway_quantize(void* engine, const float* x, int32_t num_rows, int32_t num_inputs, int8_t* bytes, float* scales,
                      int32_t* sums) {
  Engine& self = *static_cast<Engine*>(engine);
  const headway::QuantRows rows = self.scratch[0].gated_bytes.rows(num_rows, num_inputs);
  self.kernels.quantize(x, num_inputs, 0, num_rows, rows);
  for (int r = 0; r < num_rows; ++r) {
    for (int g = 0; g < rows.num_groups; ++g) {
      const headway::TileGroup& group = rows.tile(r)[g];
      const int lane = r % headway::kTileRows, index = r * rows.num_groups + g;
      std::memcpy(bytes + static_cast<size_t>(index) * kGroup, group.bytes[lane], kGroup);
      scales[index] = group.scales[lane];
      sums[index] = group.sums[lane];
    }
  }
}

void headway_multiply(void* engine, const float* x, int32_t num_rows, const HeadwayMatrix* matrix, float* out) {
  Engine& self = *static_cast<Engine*>(engine);
  const int num_inputs = matrix->num_groups * kGroup;
  const headway::QuantRows bytes = self.scratch[0].gated_bytes.rows(num_rows, num_inputs);
  self.kernels.quantize(x, num_inputs, 0, num_rows, bytes);
  const size_t stride = static_cast<size_t>(matrix->num_panels) * kColumns;
  headway::multiply(self, bytes, num_rows, *matrix, {headway::Output::kStore, out, stride, 0, 0, nullptr, nullptr});
}

void headway_attend(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step,
                    int32_t layer, const float* qkv, int32_t qkv_stride, float* out) {
  headway::attend_rows(*static_cast<Engine*>(engine), *model, *cache, *step, layer, qkv, qkv_stride, out);
}
}
