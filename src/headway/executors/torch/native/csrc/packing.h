// Weights to panels; `PackedMatrix` says how they lie.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headway {

// Where the inputs of each output of a panel come from: weights [num_outputs, num_inputs]. Gated, the first half of the
// outputs are gates and the second half ups, and a panel has sixteen gates and then the ups that belong to them.
struct WeightSource {
  const float* weights;
  int num_outputs;
  int num_inputs;
  bool gated;

  // The inputs of one group for one column of a panel; zeros for a column that is only padding.
  const float* group(int panel, int column, int g) const;
  int num_panels() const;
};

// Whether all weights of a panel are offset + scale * level with levels 0 to 15, and offset and scale exact as halves.
bool fits_sixteen_levels(const WeightSource& source, int panel);

void pack_panel(const WeightSource& source, int num_levels, int panel, uint8_t* out);

}  // namespace headway
