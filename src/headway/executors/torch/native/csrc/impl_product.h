// Products of bytes. Included by kernels_impl.h.

// How a group of a panel is stored. `load` gives the levels of eight inputs: [first or last four][left or right sixteen].
struct SixteenLevels {
  using Sums = SmallDots;
  static constexpr std::size_t kBytes = PackedMatrix::group_bytes(16);
  static inline void load(const uint8_t* group, int input, Bytes (&levels)[2][2]) {
    const uint8_t* from = group + input * kColumns / 2;
    for (int side = 0; side < 2; ++side) split_nibbles(from + side * 64, levels[0][side], levels[1][side]);
  }
  static inline const uint16_t* numbers(const uint8_t* group) {
    return reinterpret_cast<const uint16_t*>(group + kGroup * kColumns / 2);
  }
};

struct ManyLevels {
  using Sums = Dots;
  static constexpr std::size_t kBytes = PackedMatrix::group_bytes(256);
  static inline void load(const uint8_t* group, int input, Bytes (&levels)[2][2]) {
    const uint8_t* from = group + input * kColumns;
    for (int half = 0; half < 2; ++half)
      for (int side = 0; side < 2; ++side) levels[half][side] = load_levels(from + half * 128 + side * 64);
  }
  static inline const float* numbers(const uint8_t* group) {
    return reinterpret_cast<const float*>(group + kGroup * kColumns);
  }
};

// Products of R rows, from `lane` of their tile on, and one panel. Each group of 32 inputs is summed exactly in integers,
// then scaled and added. `ahead` is the next panel, to be fetched meanwhile, or null.
template <class Levels, int R>
static inline void multiply_tile(const TileGroup* x, int lane, int num_groups, const uint8_t* panel, const uint8_t* ahead,
                                 Floats (&total)[R][2]) {
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = zero();
  for (int g = 0; g < num_groups; ++g, ++x, panel += Levels::kBytes) {
    if (ahead != nullptr) {
      for (std::size_t i = 0; i < Levels::kBytes; i += 64) prefetch(ahead + i);
      ahead += Levels::kBytes;
    }
    typename Levels::Sums dots[R][2] = {};
HEADWAY_UNROLL(4)
    for (int i = 0; i < kGroup; i += 8) {
      Bytes levels[2][2];
      Levels::load(panel, i, levels);
HEADWAY_UNROLL(2)
      for (int half = 0; half < 2; ++half) {
HEADWAY_UNROLL(6)
        for (int r = 0; r < R; ++r) {
          const Bytes four = broadcast_activations(x->bytes[lane + r] + i + 4 * half);
          dots[r][0] = dot(dots[r][0], levels[half][0], four);
          dots[r][1] = dot(dots[r][1], levels[half][1], four);
        }
      }
    }
    const auto* numbers = Levels::numbers(panel);
    const Floats scales[2] = {load(numbers), load(numbers + kLanes)};
    const Floats offsets[2] = {load(numbers + kColumns), load(numbers + kColumns + kLanes)};
HEADWAY_UNROLL(6)
    for (int r = 0; r < R; ++r) {
      const Floats scale = broadcast(x->scales[lane + r]), all = broadcast(x->totals[lane + r]);
HEADWAY_UNROLL(2)
      for (int side = 0; side < 2; ++side) {
        const Floats dot = to_floats(finish(dots[r][side], x->sums[lane + r]));
        total[r][side] = fma(dot, mul(scales[side], scale), fma(offsets[side], all, total[r][side]));
      }
    }
  }
}

static void keep_best(Floats left, Floats right, int column, int num_outputs, float* best, int32_t* best_column) {
  const Floats bound = broadcast(*best);
  if (!any_larger(left, bound) && !any_larger(right, bound)) return;
  float lanes[kColumns];
  store(lanes, left);
  store(lanes + kLanes, right);
  for (int i = 0; i < kColumns && column + i < num_outputs; ++i) {
    if (lanes[i] > *best) {
      *best = lanes[i];
      *best_column = column + i;
    }
  }
}

static inline void finish_row(Floats left, Floats right, int row, int panel, const PackedMatrix& matrix,
                              const Destination& out) {
  const int column = panel * kColumns;
  if (matrix.bias != nullptr) {
    left = add(left, load(matrix.bias + column));
    right = add(right, load(matrix.bias + column + kLanes));
  }
  if (out.output == Output::kGate) {
    store(out.rows + row * out.stride + panel * kLanes, gated(left, right));
    return;
  }
  if (out.output == Output::kHead && row >= out.num_logit_rows) {
    keep_best(left, right, column, out.num_outputs, out.best_values + row, out.best_columns + row);
    return;
  }
  float* to = out.rows + row * out.stride + column;
  if (out.output == Output::kAdd) {
    left = add(left, load(to));
    right = add(right, load(to + kLanes));
  }
  store(to, left);
  store(to + kLanes, right);
}

template <class Levels, int R>
static void multiply_rows(const QuantRows& x, int row, const PackedMatrix& matrix, int panel, const uint8_t* ahead,
                          const Destination& out) {
  Floats products[R][2];
  multiply_tile<Levels, R>(x.tile(row), row % kTileRows, x.num_groups, matrix.panel(panel), ahead, products);
  for (int r = 0; r < R; ++r) finish_row(products[r][0], products[r][1], row + r, panel, matrix, out);
}

template <class Levels>
static void multiply_panels(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
                            const Destination& out) {
  using Tile = void (*)(const QuantRows&, int, const PackedMatrix&, int, const uint8_t*, const Destination&);
  static constexpr Tile tiles[] = {multiply_rows<Levels, 1>, multiply_rows<Levels, 2>,
#define HEADWAY_TILE(rows) multiply_rows<Levels, (rows) < kRowsAtOnce ? (rows) : kRowsAtOnce>
                                   HEADWAY_TILE(3), HEADWAY_TILE(4), HEADWAY_TILE(5), HEADWAY_TILE(6)};
#undef HEADWAY_TILE
  for (int panel = begin; panel < end; ++panel) {
    // With few rows the processor's own prefetching keeps up, and ours only costs.
    const uint8_t* ahead = num_rows >= kTileRows && panel + 1 < matrix.num_panels ? matrix.panel(panel + 1) : nullptr;
    for (int done = 0; done < num_rows;) {
      const int count = num_rows - done < kRowsAtOnce ? num_rows - done : kRowsAtOnce;
      tiles[count - 1](x, first + done, matrix, panel, done == 0 ? ahead : nullptr, out);
      done += count;
    }
  }
}

static void multiply(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
                     const Destination& out) {
  if (matrix.num_levels == 16) {
    multiply_panels<SixteenLevels>(x, first, num_rows, matrix, begin, end, out);
  } else {
    multiply_panels<ManyLevels>(x, first, num_rows, matrix, begin, end, out);
  }
}

