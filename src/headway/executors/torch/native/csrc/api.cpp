#include <cmath>
#include <cstring>

#include "forward.h"
#include "headway.h"

namespace {

using headway::Engine;
using headway::Kernels;
using headway::kColumns;
using headway::kGroup;
using headway::kPanelBytes;

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

// One group of one output: 32 inputs as bytes + 128, their scale and their centre.
void pack_group(const float* inputs, uint8_t* group, int column) {
  float least = inputs[0], most = inputs[0];
  for (int i = 1; i < kGroup; ++i) {
    least = std::fmin(least, inputs[i]);
    most = std::fmax(most, inputs[i]);
  }
  const float scale = (most - least) / 255.0f, inverse = most > least ? 255.0f / (most - least) : 0.0f;
  const float centre = most > least ? least + 128.0f * scale : least;
  for (int i = 0; i < kGroup; ++i) {
    const long level = most > least ? std::lrintf((inputs[i] - least) * inverse) : 128;
    group[(i / 4 * kColumns + column) * 4 + i % 4] = static_cast<uint8_t>(level > 255 ? 255 : level);
  }
  uint8_t* scales = group + kGroup * kColumns;
  std::memcpy(scales + column * sizeof(float), &scale, sizeof scale);
  std::memcpy(scales + (kColumns + column) * sizeof(float), &centre, sizeof centre);
}

void pack_panel(const float* weights, int num_outputs, int num_inputs, bool gated, int panel, uint8_t* out) {
  const int num_groups = num_inputs / kGroup;
  uint8_t* begin = out + static_cast<size_t>(panel) * num_groups * kPanelBytes;
  for (int column = 0; column < kColumns; ++column) {
    int source = panel * kColumns + column;
    if (gated) source = panel * 16 + column % 16 + (column < 16 ? 0 : num_outputs / 2);
    for (int g = 0; g < num_groups; ++g) {
      static const float nothing[kGroup] = {};
      const float* inputs = source < num_outputs ? weights + static_cast<size_t>(source) * num_inputs + g * kGroup : nothing;
      pack_group(inputs, begin + g * kPanelBytes, column);
    }
  }
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

size_t headway_packed_bytes(int32_t num_outputs, int32_t num_inputs) {
  return static_cast<size_t>((num_outputs + kColumns - 1) / kColumns) * (num_inputs / kGroup) * kPanelBytes;
}

void headway_pack(void* engine, const float* weights, int32_t num_outputs, int32_t num_inputs, int32_t gated, uint8_t* out) {
  static_cast<Engine*>(engine)->pool.run((num_outputs + kColumns - 1) / kColumns, [&](int panel) {
    pack_panel(weights, num_outputs, num_inputs, gated != 0, panel, out);
  });
}

void headway_forward(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step) {
  headway::forward(*static_cast<Engine*>(engine), *model, *cache, *step);
}

void headway_quantize(void* engine, const float* x, int32_t num_rows, int32_t num_inputs, int8_t* bytes, float* scales,
                      int32_t* sums) {
  Engine& self = *static_cast<Engine*>(engine);
  const int num_groups = num_inputs / kGroup;
  float* totals = self.gated.get(static_cast<size_t>(num_rows) * num_groups);
  const headway::QuantRows out{bytes, scales, sums, totals, num_groups};
  self.kernels.quantize(x, num_inputs, 0, num_rows, out);
}

void headway_multiply(void* engine, const float* x, int32_t num_rows, const HeadwayMatrix* matrix, float* out) {
  Engine& self = *static_cast<Engine*>(engine);
  const headway::PackedMatrix weights = headway::packed(*matrix);
  const int num_inputs = weights.num_groups * kGroup;
  const headway::QuantRows bytes = self.gated_bytes.rows(num_rows, num_inputs);
  self.kernels.quantize(x, num_inputs, 0, num_rows, bytes);
  const size_t stride = static_cast<size_t>(weights.num_panels) * kColumns;
  const headway::Destination to{headway::Output::kStore, out, stride, 0, 0, nullptr, nullptr};
  constexpr int each = 4;
  self.pool.run((weights.num_panels + each - 1) / each, [&](int item) {
    const int end = (item + 1) * each < weights.num_panels ? (item + 1) * each : weights.num_panels;
    self.kernels.multiply(bytes, 0, num_rows, weights, item * each, end, to);
  });
}

void headway_attend(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step,
                    int32_t layer, const float* qkv, int32_t qkv_stride, float* out) {
  headway::attend_rows(*static_cast<Engine*>(engine), *model, *cache, *step, layer, qkv, qkv_stride, out);
}
}
