// The kernels of a decoder, each over a range of rows or columns and on one thread.
//
// Whoever calls them decides what runs in parallel. What a kernel computes for a row never depends on the rows beside
// it, nor on how rows and columns are cut: sums are always added in the same order. All versions (AVX-512, AVX2,
// portable) give the same bits. A fast forward pass that is the same whatever the batch needs nothing else.
#pragma once
#include <cstddef>
#include <cstdint>

// Functions defined here are compiled once for each instruction set. Inlined for sure, none is ever taken for another's.
#define HEADWAY_INLINE inline __attribute__((always_inline))

namespace headway {

constexpr int kLanes = 16;        // floats in a vector
constexpr int kGroup = 32;        // consecutive inputs that share a scale
constexpr int kColumns = 32;      // outputs in a panel of packed weights
constexpr int kTileRows = 6;      // rows of activations that lie together, and that a product keeps in registers
constexpr int kMaxQueries = 12;   // queries that attention works on at once
constexpr int kKeyPanel = 128;    // keys whose scores are held at once; panels begin at multiples of it

// Activations as bytes: one group of inputs of six rows. x is about scale * byte.
struct TileGroup {
  int8_t bytes[kTileRows][kGroup];
  float scales[kTileRows];
  float totals[kTileRows];  // scale times the sum of the bytes
  int32_t sums[kTileRows];  // of the bytes
};

// Rows of activations, six by six: row r is lane r % 6 of tile r / 6, which has a TileGroup for each group of inputs.
struct QuantRows {
  TileGroup* groups;
  int num_groups;

  HEADWAY_INLINE TileGroup* tile(int row) const { return groups + static_cast<std::size_t>(row / kTileRows) * num_groups; }
};

// A weight matrix [num_outputs, num_groups * 32], padded with zero outputs to whole panels of 32.
// A weight is offset + scale * level; offset and scale belong to 32 inputs of one output. Panel p, group g holds 32
// inputs of 32 outputs, then 32 scales, then 32 offsets.
//   256 levels: a byte each, in the order [input / 4][output][input % 4]; scales and offsets are floats.
//   16 levels: half a byte each. Of eight inputs, the first four are the lower and the last four the upper halves:
//     [input / 8][output][input % 4]. Scales and offsets are halves, which is what 4-bit files have, so that nothing is
//     lost. A step of few rows takes as long as reading the weights, and so half as long.
struct PackedMatrix {
  const uint8_t* panels;
  const float* bias;  // [num_panels * 32], or null
  int num_panels;
  int num_groups;
  int num_levels;

  HEADWAY_INLINE static constexpr std::size_t group_bytes(int num_levels) {
    return num_levels == 16 ? kGroup * kColumns / 2 + 2 * kColumns * sizeof(uint16_t)
                            : kGroup * kColumns + 2 * kColumns * sizeof(float);
  }
  HEADWAY_INLINE const uint8_t* panel(int p) const {
    return panels + static_cast<std::size_t>(p) * num_groups * group_bytes(num_levels);
  }
};

// What becomes of products: `kStore` writes them, `kAdd` adds them to what is there, `kGate` writes silu(gate) * up for
// a matrix whose panels hold 16 gates and then the 16 ups that belong to them, `kHead` writes the first `num_logit_rows`
// rows and reports only the largest product and its column for the others.
enum class Output { kStore, kAdd, kGate, kHead };

struct Destination {
  Output output;
  float* rows;             // [num_rows, stride]
  std::size_t stride;
  int num_logit_rows;      // kHead
  int num_outputs;         // kHead: columns beyond are padding
  float* best_values;      // kHead: [num_rows], of the panels at hand
  int32_t* best_columns;   // kHead
};

// Queries, keys and values side by side, as the first projection of a layer leaves them.
struct HeadLayout {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  const float* query_norm;  // [head_dim], or null
  const float* key_norm;
  float norm_epsilon;
};

// One layer of the paged cache: [block][key or value][kv head][block_size * head_dim]. Keys of a block are stored
// [head_dim][block_size], so that a vector holds one dimension of sixteen keys; values are [block_size][head_dim].
struct KvLayer {
  void* blocks;
  bool is_half;
  int block_size;

  HEADWAY_INLINE std::size_t unit(const HeadLayout& heads, int block, int part, int head) const {
    const std::size_t index = (static_cast<std::size_t>(block) * 2 + part) * heads.num_kv_heads + head;
    return index * block_size * heads.head_dim;
  }
};

// Consecutive tokens of one request, at positions from `first_position` on.
struct AttentionTile {
  const int32_t* block_table;
  int first_row;
  int num_rows;
  int first_position;
};

struct Kernels {
  const char* name;
  // x [num_rows, k] -> out, whose rows start at row `first`.
  void (*quantize)(const float* x, std::size_t stride, int first, int num_rows, const QuantRows& out);
  // The same of RMSNorm(x) * weight.
  void (*norm_quantize)(const float* x, std::size_t stride, int first, int num_rows, const float* weight, float epsilon,
                        const QuantRows& out);
  // Rows [first, first + num_rows) times panels [begin, end) of the matrix; `first` begins a tile.
  void (*multiply)(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
                   const Destination& out);
  // Norms and rotates the heads of one row, and puts its keys and values into the cache.
  void (*rotate_and_store)(float* qkv, const HeadLayout& heads, const float* cosines, const float* sines,
                           const KvLayer& cache, int block, int slot);
  // Attention of a tile with kv heads [begin, end), all query heads of each; qkv and out are matrices of all rows. What
  // `next` will read first is fetched meanwhile; it may be null.
  void (*attend)(const float* qkv, std::size_t qkv_stride, const HeadLayout& heads, const KvLayer& cache,
                 const AttentionTile& tile, const AttentionTile* next, int begin, int end, int window, float* out,
                 std::size_t out_stride);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace headway
