// The kernels, written once over the vector type that the including file has chosen.
// Included inside a namespace of that file's own: nothing here may be shared between instruction sets.

static inline float sum_lanes(Floats a) {
  float lanes[kLanes];
  store(lanes, a);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// e^x to about 2 ulp: e^x = 2^n * e^r with |r| <= ln(2) / 2, and a Taylor polynomial for e^r. Exactly 1 at 0, exactly 0
// below -87.
static inline Floats exponential(Floats x) {
  const Floats kept = larger(x, broadcast(-87.0f));
  const Ints n = to_ints(mul(kept, broadcast(1.44269504f)));
  Floats r = fma(to_floats(n), broadcast(-0.693359375f), kept);
  r = fma(to_floats(n), broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.0f / 5040.0f);
  for (const float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f})
    p = fma(p, r, broadcast(c));
  return zero_where_less(x, -87.0f, mul(p, power_of_two(n)));
}

// g / (1 + e^-g) * u. Below -87 the gate is shut: e^87 would be the last to fit.
static inline Floats gated(Floats g, Floats u) {
  const Floats negated = sub(zero(), larger(g, broadcast(-87.0f)));
  return mul(div(g, add(broadcast(1.0f), exponential(negated))), u);
}

// ---------------------------------------------------------------- activations to bytes

static inline void quantize_group(Floats a, Floats b, const QuantRows& out, int row, int g) {
  TileGroup& to = out.tile(row)[g];
  const int lane = row % kTileRows;
  const float most = largest(larger(absolute(a), absolute(b)));
  const Floats inverse = broadcast(most > 0.0f ? 127.0f / most : 0.0f);
  const Ints low = to_ints(mul(a, inverse)), high = to_ints(mul(b, inverse));
  store_bytes(to.bytes[lane], low);
  store_bytes(to.bytes[lane] + kLanes, high);
  to.scales[lane] = most / 127.0f;
  to.sums[lane] = sum(low, high);
  to.totals[lane] = to.scales[lane] * static_cast<float>(to.sums[lane]);
}

static void quantize(const float* x, std::size_t stride, int first, int num_rows, const QuantRows& out) {
  for (int r = first; r < first + num_rows; ++r) {
    const float* row = x + r * stride;
    for (int g = 0; g < out.num_groups; ++g, row += kGroup) quantize_group(load(row), load(row + kLanes), out, r, g);
  }
}

static void norm_quantize(const float* x, std::size_t stride, int first, int num_rows, const float* weight,
                          float epsilon, const QuantRows& out) {
  const int width = out.num_groups * kGroup;
  for (int r = first; r < first + num_rows; ++r) {
    const float* row = x + r * stride;
    Floats squares = zero();
    for (int i = 0; i < width; i += kLanes) squares = fma(load(row + i), load(row + i), squares);
    const Floats factor = broadcast(1.0f / __builtin_sqrtf(sum_lanes(squares) / width + epsilon));
    for (int g = 0, i = 0; g < out.num_groups; ++g, i += kGroup) {
      const Floats a = mul(mul(load(row + i), factor), load(weight + i));
      const Floats b = mul(mul(load(row + i + kLanes), factor), load(weight + i + kLanes));
      quantize_group(a, b, out, r, g);
    }
  }
}

// ---------------------------------------------------------------- heads and cache

static void norm_head(float* head, int head_dim, const float* weight, float epsilon) {
  Floats squares = zero();
  for (int d = 0; d < head_dim; d += kLanes) squares = fma(load(head + d), load(head + d), squares);
  const Floats factor = broadcast(1.0f / __builtin_sqrtf(sum_lanes(squares) / head_dim + epsilon));
  for (int d = 0; d < head_dim; d += kLanes) store(head + d, mul(mul(load(head + d), factor), load(weight + d)));
}

// Pairs of neighbouring dimensions turn: (a, b) -> (a cos - b sin, b cos + a sin). `sines` has the signs built in.
static void rotate_head(float* head, int head_dim, const float* cosines, const float* sines) {
  for (int d = 0; d < head_dim; d += kLanes) {
    const Floats x = load(head + d);
    store(head + d, fma(swap_pairs(x), load(sines + d), mul(x, load(cosines + d))));
  }
}

template <class E>
static void store_key(const float* head, int head_dim, E* block, int block_size, int slot) {
  for (int d = 0; d < head_dim; d += kLanes) {
    E lanes[kLanes];
    store(lanes, load(head + d));
    for (int i = 0; i < kLanes; ++i) block[(d + i) * block_size + slot] = lanes[i];
  }
}

template <class E>
static void store_token(const float* keys, const HeadLayout& heads, const KvLayer& cache, int block, int slot) {
  E* blocks = static_cast<E*>(cache.blocks);
  const int head_dim = heads.head_dim;
  const float* values = keys + heads.num_kv_heads * head_dim;
  for (int h = 0; h < heads.num_kv_heads; ++h) {
    store_key(keys + h * head_dim, head_dim, blocks + cache.unit(heads, block, 0, h), cache.block_size, slot);
    E* to = blocks + cache.unit(heads, block, 1, h) + slot * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) store(to + d, load(values + h * head_dim + d));
  }
}

static void rotate_and_store(float* qkv, const HeadLayout& heads, const float* cosines, const float* sines,
                             const KvLayer& cache, int block, int slot) {
  const int head_dim = heads.head_dim;
  for (int h = 0; h < heads.num_heads + heads.num_kv_heads; ++h) {
    float* head = qkv + h * head_dim;
    const float* weight = h < heads.num_heads ? heads.query_norm : heads.key_norm;
    if (weight != nullptr) norm_head(head, head_dim, weight, heads.norm_epsilon);
    rotate_head(head, head_dim, cosines, sines);
  }
  const float* keys = qkv + heads.num_heads * head_dim;
  if (cache.is_half) {
    store_token<uint16_t>(keys, heads, cache, block, slot);
  } else {
    store_token<float>(keys, heads, cache, block, slot);
  }
}

#include "impl_attention.h"
#include "impl_product.h"
