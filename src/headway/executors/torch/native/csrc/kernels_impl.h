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
  int8_t* bytes = out.row(row) + g * kGroup;
  const std::size_t index = static_cast<std::size_t>(row) * out.num_groups + g;
  const float most = largest(larger(absolute(a), absolute(b)));
  out.scales[index] = most / 127.0f;
  const Floats inverse = broadcast(most > 0.0f ? 127.0f / most : 0.0f);
  const Ints low = to_ints(mul(a, inverse)), high = to_ints(mul(b, inverse));
  store_bytes(bytes, low);
  store_bytes(bytes + kLanes, high);
  out.sums[index] = sum(low, high);
  out.totals[index] = out.scales[index] * static_cast<float>(out.sums[index]);
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

// ---------------------------------------------------------------- matrix product

// Products of R rows and one panel. Each group of 32 inputs is summed exactly in integers, then scaled and added.
template <int R>
static inline void multiply_tile(const QuantRows& x, int first, const PackedMatrix& matrix, int panel, Floats (*out)[2]) {
  const uint8_t* weights = matrix.panel(panel);
  const int8_t* bytes = x.row(first);
  const std::size_t row_bytes = static_cast<std::size_t>(x.num_groups) * kGroup;
  const float* scales = x.scales + static_cast<std::size_t>(first) * x.num_groups;
  const int32_t* sums = x.sums + static_cast<std::size_t>(first) * x.num_groups;
  const float* totals = x.totals + static_cast<std::size_t>(first) * x.num_groups;
  Floats total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = zero();
  for (int g = 0; g < x.num_groups; ++g, weights += kPanelBytes) {
    Ints dots[R][2];
    for (int r = 0; r < R; ++r) dots[r][0] = dots[r][1] = dot_start(sums[r * x.num_groups + g]);
HEADWAY_UNROLL(8)
    for (int i = 0; i < kGroup; i += 4) {
      const Bytes left = load_weights(weights + i * kColumns), right = load_weights(weights + i * kColumns + 64);
HEADWAY_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        const Bytes four = broadcast_activations(bytes + r * row_bytes + g * kGroup + i);
        dots[r][0] = dot(dots[r][0], left, four);
        dots[r][1] = dot(dots[r][1], right, four);
      }
    }
    const float* column_scales = reinterpret_cast<const float*>(weights + kGroup * kColumns);
    const Floats left = load(column_scales), right = load(column_scales + kLanes);
    const Floats left_centre = load(column_scales + kColumns), right_centre = load(column_scales + kColumns + kLanes);
HEADWAY_UNROLL(6)
    for (int r = 0; r < R; ++r) {
      const Floats scale = broadcast(scales[r * x.num_groups + g]), all = broadcast(totals[r * x.num_groups + g]);
      total[r][0] = fma(left_centre, all, total[r][0]);
      total[r][1] = fma(right_centre, all, total[r][1]);
      total[r][0] = fma(to_floats(dots[r][0]), mul(left, scale), total[r][0]);
      total[r][1] = fma(to_floats(dots[r][1]), mul(right, scale), total[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    out[r][0] = total[r][0];
    out[r][1] = total[r][1];
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

template <int R>
static void multiply_rows(const QuantRows& x, int first, const PackedMatrix& matrix, int panel, const Destination& out) {
  Floats products[R][2];
  multiply_tile<R>(x, first, matrix, panel, products);
  for (int r = 0; r < R; ++r) finish_row(products[r][0], products[r][1], first + r, panel, matrix, out);
}

static void multiply(const QuantRows& x, int first, int num_rows, const PackedMatrix& matrix, int begin, int end,
                     const Destination& out) {
  using Tile = void (*)(const QuantRows&, int, const PackedMatrix&, int, const Destination&);
  static constexpr Tile tiles[kTileRows + 1] = {nullptr,          multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
                                                multiply_rows<4>, multiply_rows<5>, multiply_rows<6>};
  for (int panel = begin; panel < end; ++panel) {
    for (int row = 0; row < num_rows; row += kTileRows) {
      const int count = num_rows - row < kTileRows ? num_rows - row : kTileRows;
      tiles[count](x, first + row, matrix, panel, out);
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

// ---------------------------------------------------------------- attention

// Scores of T queries and V vectors of sixteen keys each: scores[t][v] = sum over d of query[t][d] * keys[v][d].
template <class E, int T, int V>
static inline void score(const float* queries, int head_dim, const E* const* keys, int block_size, float* scores) {
  Floats total[T][V];
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) total[t][v] = zero();
  for (int d = 0; d < head_dim; ++d) {
    Floats k[V];
    for (int v = 0; v < V; ++v) k[v] = load(keys[v] + d * block_size);
HEADWAY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const Floats q = broadcast(queries[t * head_dim + d]);
      for (int v = 0; v < V; ++v) total[t][v] = fma(q, k[v], total[t][v]);
    }
  }
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) store(scores + t * kKeyPanel + v * kLanes, total[t][v]);
}

// out[t] += sum over keys [begin, end) of weights[t][key] * values[key], for W vectors of dimensions at `d`.
template <class E, int T, int W>
static inline void mix(const float* weights, const E* const* values, int begin, int end, int head_dim, int d, float* out) {
  Floats total[T][W];
  for (int t = 0; t < T; ++t)
    for (int w = 0; w < W; ++w) total[t][w] = load(out + t * head_dim + d + w * kLanes);
  for (int key = begin; key < end; ++key) {
    Floats value[W];
    const E* from = values[key / kLanes] + (key % kLanes) * head_dim + d;
    for (int w = 0; w < W; ++w) value[w] = load(from + w * kLanes);
HEADWAY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const Floats weight = broadcast(weights[t * kKeyPanel + key]);
      for (int w = 0; w < W; ++w) total[t][w] = fma(weight, value[w], total[t][w]);
    }
  }
  for (int t = 0; t < T; ++t)
    for (int w = 0; w < W; ++w) store(out + t * head_dim + d + w * kLanes, total[t][w]);
}

// What is known of one query so far: the largest score, and by lane the sum of weights relative to it.
struct Progress {
  float largest;
  float sums[kLanes];
};

// Turns the scores of one query into weights: 0 outside [low, high]. Earlier results shrink if a larger score came.
static void weigh(float* scores, int num_keys, int low, int high, Progress* so_far, float* out, int head_dim) {
  const int end = (num_keys + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < low; ++i) scores[i] = -__builtin_inff();
  for (int i = high + 1; i < end; ++i) scores[i] = -__builtin_inff();
  Floats most = load(scores);
  for (int i = kLanes; i < end; i += kLanes) most = larger(most, load(scores + i));
  const float panel_largest = largest(most);
  if (panel_largest > so_far->largest) {
    const Floats factor = exponential(broadcast(so_far->largest - panel_largest));
    store(so_far->sums, mul(load(so_far->sums), factor));
    for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(out + d), factor));
    so_far->largest = panel_largest;
  }
  const Floats base = broadcast(so_far->largest);
  Floats sums = load(so_far->sums);
  for (int i = 0; i < end; i += kLanes) {
    const Floats weight = exponential(sub(load(scores + i), base));
    store(scores + i, weight);
    sums = add(sums, weight);
  }
  store(so_far->sums, sums);
}

constexpr int kMaxHeadDim = 256;

template <class E>
struct Attention {
  const HeadLayout& heads;
  const KvLayer& cache;
  const int32_t* table;
  int kv_head;
  int window;

  int first_key(int position) const { return window > 0 && position >= window ? position - window + 1 : 0; }

  // Where sixteen keys, or their values, begin.
  const E* keys(int key) const { return unit(key, 0) + key % cache.block_size; }
  const E* values(int key) const { return unit(key, 1) + (key % cache.block_size) * heads.head_dim; }
  const E* unit(int key, int part) const {
    return static_cast<const E*>(cache.blocks) + cache.unit(heads, table[key / cache.block_size], part, kv_head);
  }

  // Queries [T, head_dim], scaled; out [T, head_dim]. Panel by panel of keys, with the softmax kept up as it grows.
  template <int T>
  void run(const float* queries, const Query* where, float* out) const {
    constexpr int V = T <= 6 ? 2 : 1;
    const int head_dim = heads.head_dim;
    alignas(64) float scores[T * kKeyPanel];
    const E *key_vectors[kKeyPanel / kLanes + 1], *value_vectors[kKeyPanel / kLanes];
    Progress progress[T];
    int first = first_key(where[0].position), last = where[0].position;
    for (int t = 0; t < T; ++t) {
      progress[t] = {-__builtin_inff(), {}};
      const int begin = first_key(where[t].position);
      first = begin < first ? begin : first;
      last = where[t].position > last ? where[t].position : last;
    }
    for (int i = 0; i < T * head_dim; i += kLanes) store(out + i, zero());
    for (int base = first / kKeyPanel * kKeyPanel; base <= last; base += kKeyPanel) {
      const int num_keys = last + 1 - base < kKeyPanel ? last + 1 - base : kKeyPanel;
      const int begin = first > base ? first - base : 0;
      const int first_vector = begin / kLanes, num_vectors = (num_keys + kLanes - 1) / kLanes;
      for (int v = first_vector; v < num_vectors; ++v) {
        key_vectors[v] = keys(base + v * kLanes);
        value_vectors[v] = values(base + v * kLanes);
      }
      int v = first_vector;
      for (; v + V <= num_vectors; v += V)
        score<E, T, V>(queries, head_dim, key_vectors + v, cache.block_size, scores + v * kLanes);
      if (v < num_vectors) score<E, T, 1>(queries, head_dim, key_vectors + v, cache.block_size, scores + v * kLanes);
      for (int t = 0; t < T; ++t) {
        const int low = first_key(where[t].position) - base, high = where[t].position - base;
        if (low >= num_keys || high < 0) {
          for (int i = 0; i < num_vectors * kLanes; ++i) scores[t * kKeyPanel + i] = 0.0f;
        } else {
          weigh(scores + t * kKeyPanel, num_keys, low, high, &progress[t], out + t * head_dim, head_dim);
        }
      }
      int d = 0;
      for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes)
        mix<E, T, 2>(scores, value_vectors, begin, num_keys, head_dim, d, out);
      if (d < head_dim) mix<E, T, 1>(scores, value_vectors, begin, num_keys, head_dim, d, out);
    }
    for (int t = 0; t < T; ++t) {
      const Floats inverse = broadcast(1.0f / sum_lanes(load(progress[t].sums)));
      for (int d = 0; d < head_dim; d += kLanes) store(out + t * head_dim + d, mul(load(out + t * head_dim + d), inverse));
    }
  }
};

// The largest number of queries, up to `count`, that there is code for.
template <class E>
static int attend_some(const Attention<E>& attention, const float* queries, const Query* where, int count, float* out) {
  if (count >= 12) return attention.template run<12>(queries, where, out), 12;
  if (count >= 9) return attention.template run<9>(queries, where, out), 9;
  if (count >= 6) return attention.template run<6>(queries, where, out), 6;
  if (count >= 4) return attention.template run<4>(queries, where, out), 4;
  if (count >= 3) return attention.template run<3>(queries, where, out), 3;
  if (count >= 2) return attention.template run<2>(queries, where, out), 2;
  return attention.template run<1>(queries, where, out), 1;
}

template <class E>
static void attend_in(const Attention<E>& attention, const float* queries, const Query* where, int count, float* out) {
  const int head_dim = attention.heads.head_dim;
  for (int t = 0; t < count;)
    t += attend_some(attention, queries + t * head_dim, where + t, count - t, out + t * head_dim);
}

static void attend(const float* qkv, std::size_t qkv_stride, const HeadLayout& heads, const KvLayer& cache,
                   const int32_t* block_table, int kv_head, const Query* queries, int num_queries, int window, float* out,
                   std::size_t out_stride) {
  const int head_dim = heads.head_dim;
  alignas(64) float scaled[kMaxQueries * kMaxHeadDim], mixed[kMaxQueries * kMaxHeadDim];
  const Floats scale = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(head_dim)));
  for (int t = 0; t < num_queries; ++t) {
    const float* from = qkv + queries[t].row * qkv_stride + queries[t].head * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) store(scaled + t * head_dim + d, mul(load(from + d), scale));
  }
  if (cache.is_half) {
    attend_in(Attention<uint16_t>{heads, cache, block_table, kv_head, window}, scaled, queries, num_queries, mixed);
  } else {
    attend_in(Attention<float>{heads, cache, block_table, kv_head, window}, scaled, queries, num_queries, mixed);
  }
  for (int t = 0; t < num_queries; ++t) {
    float* to = out + queries[t].row * out_stride + queries[t].head * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) store(to + d, load(mixed + t * head_dim + d));
  }
}
