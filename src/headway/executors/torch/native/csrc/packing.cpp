#include "packing.h"

#include <cmath>
#include <cstring>

#include "half.h"
#include "kernels.h"

namespace headway {
namespace {

constexpr int kMostLevel = 15;
// Of the largest weight of a group: what float32 arithmetic may be off when a file's numbers are multiplied out.
constexpr float kRounding = 0x1p-21f;

struct Range {
  float least, most;
};

Range range_of(const float* inputs) {
  Range range = {inputs[0], inputs[0]};
  for (int i = 1; i < kGroup; ++i) {
    range.least = inputs[i] < range.least ? inputs[i] : range.least;
    range.most = inputs[i] > range.most ? inputs[i] : range.most;
  }
  return range;
}

// A group's weights are offset + scale * level.
struct Steps {
  float scale, offset;
};

bool is_half(float x) { return half_to_float(float_to_half(x)) == x; }

bool explains(const Steps& steps, const float* inputs, float tolerance) {
  const float inverse = steps.scale > 0.0f ? 1.0f / steps.scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float level = std::nearbyint((inputs[i] - steps.offset) * inverse);
    if (!(std::fabs(steps.offset + steps.scale * level - inputs[i]) <= tolerance)) return false;
  }
  return true;
}

// Scale and offset of a group of sixteen levels or fewer, both exact as halves. The least weight need not have level 0
// nor the largest 15: each number of steps between them is tried, and each level that the least one may have.
bool find_steps(const float* inputs, Steps* found) {
  const Range range = range_of(inputs);
  const float span = range.most - range.least;
  const float tolerance = std::fmax(std::fabs(range.least), std::fabs(range.most)) * kRounding;
  if (span == 0.0f) {
    *found = {0.0f, range.least};
    return is_half(range.least);
  }
  for (int num_steps = kMostLevel; num_steps > 0; --num_steps) {
    const float scale = half_to_float(float_to_half(span / static_cast<float>(num_steps)));
    if (!(std::fabs(scale * static_cast<float>(num_steps) - span) <= tolerance)) continue;
    if (!explains({scale, range.least}, inputs, tolerance)) continue;
    for (int level = 0; level <= kMostLevel - num_steps; ++level) {
      const float offset = half_to_float(float_to_half(range.least - scale * static_cast<float>(level)));
      if (!(std::fabs(offset + scale * static_cast<float>(level) - range.least) <= tolerance)) continue;
      *found = {scale, offset};
      return explains(*found, inputs, tolerance);
    }
  }
  return false;
}

void pack_sixteen_levels(const float* inputs, uint8_t* group, int column) {
  Steps steps = {0.0f, 0.0f};
  find_steps(inputs, &steps);
  const float inverse = steps.scale > 0.0f ? 1.0f / steps.scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const int level = static_cast<int>(std::lrintf((inputs[i] - steps.offset) * inverse));
    group[(i / 8 * kColumns + column) * 4 + i % 4] |= static_cast<uint8_t>(level << (i % 8 < 4 ? 0 : 4));
  }
  const uint16_t scale = float_to_half(steps.scale), offset = float_to_half(steps.offset);
  uint8_t* numbers = group + kGroup * kColumns / 2;
  std::memcpy(numbers + column * sizeof scale, &scale, sizeof scale);
  std::memcpy(numbers + (kColumns + column) * sizeof offset, &offset, sizeof offset);
}

// 256 levels between the least and the largest weight.
void pack_many_levels(const float* inputs, uint8_t* group, int column) {
  const Range range = range_of(inputs);
  const float span = range.most - range.least, scale = span / 255.0f, inverse = span > 0.0f ? 255.0f / span : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const long level = std::lrintf((inputs[i] - range.least) * inverse);
    group[(i / 4 * kColumns + column) * 4 + i % 4] = static_cast<uint8_t>(level > 255 ? 255 : level);
  }
  uint8_t* numbers = group + kGroup * kColumns;
  std::memcpy(numbers + column * sizeof scale, &scale, sizeof scale);
  std::memcpy(numbers + (kColumns + column) * sizeof range.least, &range.least, sizeof range.least);
}

}  // namespace

int WeightSource::num_panels() const { return (num_outputs + kColumns - 1) / kColumns; }

const float* WeightSource::group(int panel, int column, int g) const {
  static const float nothing[kGroup] = {};
  int output = panel * kColumns + column;
  if (gated) output = panel * kLanes + column % kLanes + (column < kLanes ? 0 : num_outputs / 2);
  return output < num_outputs ? weights + static_cast<std::size_t>(output) * num_inputs + g * kGroup : nothing;
}

bool fits_sixteen_levels(const WeightSource& source, int panel) {
  Steps steps;
  for (int column = 0; column < kColumns; ++column)
    for (int g = 0; g < source.num_inputs / kGroup; ++g)
      if (!find_steps(source.group(panel, column, g), &steps)) return false;
  return true;
}

void pack_panel(const WeightSource& source, int num_levels, int panel, uint8_t* out) {
  const int num_groups = source.num_inputs / kGroup;
  const std::size_t group_bytes = PackedMatrix::group_bytes(num_levels);
  uint8_t* begin = out + static_cast<std::size_t>(panel) * num_groups * group_bytes;
  std::memset(begin, 0, num_groups * group_bytes);
  for (int column = 0; column < kColumns; ++column) {
    for (int g = 0; g < num_groups; ++g) {
      const float* inputs = source.group(panel, column, g);
      if (num_levels == 16) {
        pack_sixteen_levels(inputs, begin + g * group_bytes, column);
      } else {
        pack_many_levels(inputs, begin + g * group_bytes, column);
      }
    }
  }
}

}  // namespace headway
