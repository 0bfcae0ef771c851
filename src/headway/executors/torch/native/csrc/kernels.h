// The kernels of a decoder, each over a range of rows or columns and on one thread.
//
// Whoever calls them decides what runs in parallel. What a kernel computes for a row never depends on the rows beside
// it, nor on how rows and columns are cut: sums are always added in the same order. All versions (AVX-512, AVX2,
// portable) give the same bits. A fast forward pass that is the same whatever the batch needs nothing else.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headway {

constexpr int kLanes = 16;        // floats in a vector
constexpr int kGroup = 32;        // consecutive inputs that share a scale
constexpr int kColumns = 32;      // outputs in a panel of packed weights
constexpr int kTileRows = 6;      // rows that a tile of the matrix product keeps in registers
constexpr int kMaxQueries = 12;   // queries that attention works on at once
constexpr int kKeyPanel = 128;    // keys whose scores are held at once; panels begin at multiples of it
constexpr std::size_t kPanelBytes = kGroup * kColumns + 2 * kColumns * sizeof(float);  // of one group of one panel

// Rows of activations as bytes: x is about scale * q. Row r of group g has at r * num_groups + g its scale, the sum of q,
// and the scale times that sum.
struct QuantRows {
  int8_t* bytes;
  float* scales;
  int32_t* sums;
  float* totals;
  int num_groups;

  int8_t* row(int r) const { return bytes + static_cast<std::size_t>(r) * num_groups * kGroup; }
};

// A weight matrix [num_outputs, num_groups * 32], padded with zero outputs to whole panels of 32.
// A weight is about centre + scale * s, -128 <= s <= 127: centre and scale are of 32 inputs of one output, so that weights
// of sixteen levels, such as those of 4-bit files, are kept exactly. Panel p, group g: 32 inputs of 32 outputs as s + 128, in
// the order [input / 4][output][input % 4]; then 32 scales; then 32 centres.
struct PackedMatrix {
  const uint8_t* panels;
  const float* bias;  // [num_panels * 32], or null
  int num_panels;
  int num_groups;

  const uint8_t* panel(int p) const { return panels + static_cast<std::size_t>(p) * num_groups * kPanelBytes; }
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

  std::size_t unit(const HeadLayout& heads, int block, int part, int head) const {
    const std::size_t index = (static_cast<std::size_t>(block) * 2 + part) * heads.num_kv_heads + head;
    return index * block_size * heads.head_dim;
  }
};

// One row and all query heads of one kv head would be `heads per kv head` queries.
struct Query {
  int row;
  int head;
  int position;
};

struct Kernels {
  const char* name;
  // x [num_rows, k] -> out, whose rows start at row `first`.
  void (*quantize)(const float* x, std::size_t stride, int first, int num_rows, const QuantRows& out);
  // The same of RMSNorm(x) * weight.
  void (*norm_quantize)(const float* x, std::size_t stride, int first, int num_rows, const float* weight, float epsilon,
                        const QuantRows& out);
  // Rows [first, first + num_rows) times panels [begin, end) of the matrix.
  void (*multiply)(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
                   const Destination& out);
  // Norms and rotates the heads of one row, and puts its keys and values into the cache.
  void (*rotate_and_store)(float* qkv, const HeadLayout& heads, const float* cosines, const float* sines,
                           const KvLayer& cache, int block, int slot);
  // Attends with up to kMaxQueries queries of one kv head of one request; qkv and out are matrices of all rows.
  void (*attend)(const float* qkv, std::size_t qkv_stride, const HeadLayout& heads, const KvLayer& cache,
                 const int32_t* block_table, int kv_head, const Query* queries, int num_queries, int window, float* out,
                 std::size_t out_stride);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace headway
