// Attention over the paged cache. Included by kernels_impl.h.

// Sixteen keys, or their values: where they are, and how to touch the lines of memory that they fill.
template <class E>
struct Sixteen {
  const E* at;
  int stride;  // of one row of sixteen numbers to the next

  // Row `row` of head_dim. Two rows of halves fill a line.
  void fetch(int row) const {
    if (sizeof(E) == 4 || stride != kLanes || row % 2 == 0) prefetch(at + static_cast<std::size_t>(row) * stride);
  }
};

// Scores of T queries and V vectors of sixteen keys each: scores[t][v] = sum over d of query[t][d] * keys[v][d]. Fetches
// the values that belong to the keys.
template <class E, int T, int V>
static inline void score(const float* queries, int head_dim, const Sixteen<E>* keys, const Sixteen<E>* values,
                         float* scores) {
  Floats total[T][V];
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) total[t][v] = zero();
  for (int d = 0; d < head_dim; ++d) {
    Floats k[V];
    for (int v = 0; v < V; ++v) {
      k[v] = load(keys[v].at + d * keys[v].stride);
      values[v].fetch(d);
    }
HEADWAY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const Floats q = broadcast(queries[t * head_dim + d]);
      for (int v = 0; v < V; ++v) total[t][v] = fma(q, k[v], total[t][v]);
    }
  }
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) store(scores + t * kKeyPanel + v * kLanes, total[t][v]);
}

// Keys that will be read next, fetched bit by bit.
template <class E>
struct Upcoming {
  const Sixteen<E>* vectors;
  int num_vectors;
  int row;

  void fetch(int num_rows, int head_dim) {
    for (; num_rows > 0 && num_vectors > 0; --num_rows) {
      vectors->fetch(row);
      if (++row < head_dim) continue;
      row = 0;
      ++vectors;
      --num_vectors;
    }
  }
};

// out[t] += sum over keys [begin, end) of weights[t][key] * values[key], for W vectors of dimensions at `d`. Fetches
// `num_fetched` rows of `upcoming` with every key.
template <class E, int T, int W>
static inline void mix(const float* weights, const Sixteen<E>* values, int begin, int end, int head_dim, int d,
                       Upcoming<E>& upcoming, int num_fetched, float* out) {
  Floats total[T][W];
  for (int t = 0; t < T; ++t)
    for (int w = 0; w < W; ++w) total[t][w] = load(out + t * head_dim + d + w * kLanes);
  for (int key = begin; key < end; ++key) {
    Floats value[W];
    const E* from = values[key / kLanes].at + (key % kLanes) * head_dim + d;
    for (int w = 0; w < W; ++w) value[w] = load(from + w * kLanes);
    upcoming.fetch(num_fetched, head_dim);
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
constexpr int kPanelVectors = kKeyPanel / kLanes;

// One query head of one row.
struct Query {
  int row;
  int head;
  int position;
};

// The keys of a request from `first` to `last`, for one kv head of one layer.
template <class E>
struct Keys {
  const HeadLayout* heads;
  const KvLayer* cache;
  const int32_t* table;
  int kv_head;
  int first, last;

  Sixteen<E> keys(int key) const { return {unit(key, 0) + key % cache->block_size, cache->block_size}; }
  Sixteen<E> values(int key) const {
    return {unit(key, 1) + (key % cache->block_size) * heads->head_dim, kLanes};
  }
  const E* unit(int key, int part) const {
    return static_cast<const E*>(cache->blocks) + cache->unit(*heads, table[key / cache->block_size], part, kv_head);
  }
  // The keys of the panel that begins at `base`, sixteen by sixteen, and how many of those there are.
  int panel(int base, Sixteen<E>* out) const {
    int count = 0;
    for (int key = base; key <= last && count < kPanelVectors; key += kLanes) out[count++] = keys(key);
    return count;
  }
};

// Queries of one kv head of one request.
template <class E>
struct Attention {
  const Keys<E>& seen;
  int window;
  const Keys<E>* next;  // whose first panel is to be fetched, or null

  int first_key(int position) const { return window > 0 && position >= window ? position - window + 1 : 0; }

  // What will be read after the panel at `base`: the next panel, or what comes after this attention.
  Upcoming<E> after(int base, Sixteen<E>* vectors) const {
    if (base + kKeyPanel <= seen.last) return {vectors, seen.panel(base + kKeyPanel, vectors), 0};
    return {vectors, next == nullptr ? 0 : next->panel(next->first / kKeyPanel * kKeyPanel, vectors), 0};
  }

  // Queries [T, head_dim], scaled; out [T, head_dim]. Panel by panel of keys, with the softmax kept up as it grows.
  template <int T>
  void run(const float* queries, const Query* where, float* out) const {
    constexpr int V = T <= 6 ? 2 : kVectorsAtOnce;
    const int head_dim = seen.heads->head_dim;
    alignas(64) float scores[T * kKeyPanel];
    Sixteen<E> keys[kPanelVectors], values[kPanelVectors], upcoming_keys[kPanelVectors];
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
        keys[v] = seen.keys(base + v * kLanes);
        values[v] = seen.values(base + v * kLanes);
      }
      int v = first_vector;
      for (; v + V <= num_vectors; v += V)
        score<E, T, V>(queries, head_dim, keys + v, values + v, scores + v * kLanes);
      if (v < num_vectors) score<E, T, 1>(queries, head_dim, keys + v, values + v, scores + v * kLanes);
      for (int t = 0; t < T; ++t) {
        const int low = first_key(where[t].position) - base, high = where[t].position - base;
        if (low >= num_keys || high < 0) {
          for (int i = 0; i < num_vectors * kLanes; ++i) scores[t * kKeyPanel + i] = 0.0f;
        } else {
          weigh(scores + t * kKeyPanel, num_keys, low, high, &progress[t], out + t * head_dim, head_dim);
        }
      }
      Upcoming<E> upcoming = after(base, upcoming_keys);
      const int num_fetched = (upcoming.num_vectors * head_dim + num_keys - begin - 1) / (num_keys - begin);
      constexpr int W = T <= 6 ? 4 : 2;
      int d = 0;
      for (; d + W * kLanes <= head_dim; d += W * kLanes)
        mix<E, T, W>(scores, values, begin, num_keys, head_dim, d, upcoming, num_fetched, out);
      for (; d < head_dim; d += kLanes)
        mix<E, T, 1>(scores, values, begin, num_keys, head_dim, d, upcoming, num_fetched, out);
    }
    for (int t = 0; t < T; ++t) {
      const Floats inverse = broadcast(1.0f / sum_lanes(load(progress[t].sums)));
      for (int d = 0; d < head_dim; d += kLanes) store(out + t * head_dim + d, mul(load(out + t * head_dim + d), inverse));
    }
  }

  // The largest number of queries, up to `count`, that there is code for.
  int run_some(const float* queries, const Query* where, int count, float* out) const {
    if (count >= 12) return run<12>(queries, where, out), 12;
    if (count >= 9) return run<9>(queries, where, out), 9;
    if (count >= 6) return run<6>(queries, where, out), 6;
    if (count >= 4) return run<4>(queries, where, out), 4;
    if (count >= 3) return run<3>(queries, where, out), 3;
    if (count >= 2) return run<2>(queries, where, out), 2;
    return run<1>(queries, where, out), 1;
  }
};

// All queries of a tile; up to kMaxQueries at once share what they read of keys and values.
template <class E>
struct TileAttention {
  const float* qkv;
  std::size_t qkv_stride;
  const HeadLayout& heads;
  const KvLayer& cache;
  int window;
  float* out;
  std::size_t out_stride;

  Keys<E> keys(const AttentionTile& tile, int kv_head) const {
    const int first = tile.first_position, last = first + tile.num_rows - 1;
    return {&heads, &cache, tile.block_table, kv_head, window > 0 && first >= window ? first - window + 1 : 0, last};
  }

  void run(const AttentionTile& tile, const AttentionTile* next_tile, int begin, int end) const {
    for (int kv_head = begin; kv_head < end; ++kv_head) {
      const Keys<E> seen = keys(tile, kv_head);
      Keys<E> next = seen;
      if (kv_head + 1 < end) {
        next = keys(tile, kv_head + 1);
      } else if (next_tile != nullptr) {
        next = keys(*next_tile, begin);
      }
      run_head(tile, kv_head, seen, next);
    }
  }

  void run_head(const AttentionTile& tile, int kv_head, const Keys<E>& seen, const Keys<E>& next) const {
    const int each = heads.num_heads / heads.num_kv_heads, total = tile.num_rows * each;
    Query queries[kMaxQueries];
    for (int done = 0; done < total;) {
      int count = 0;
      for (; count < kMaxQueries && done + count < total; ++count) {
        const int row = (done + count) / each, head = kv_head * each + (done + count) % each;
        queries[count] = {tile.first_row + row, head, tile.first_position + row};
      }
      done += count;
      run_queries(Attention<E>{seen, window, done < total ? nullptr : &next}, queries, count);
    }
  }

  void run_queries(const Attention<E>& attention, const Query* queries, int count) const {
    const int head_dim = heads.head_dim;
    alignas(64) float scaled[kMaxQueries * kMaxHeadDim], mixed[kMaxQueries * kMaxHeadDim];
    const Floats scale = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(head_dim)));
    for (int t = 0; t < count; ++t) {
      const float* from = qkv + queries[t].row * qkv_stride + queries[t].head * head_dim;
      for (int d = 0; d < head_dim; d += kLanes) store(scaled + t * head_dim + d, mul(load(from + d), scale));
    }
    for (int t = 0; t < count;)
      t += attention.run_some(scaled + t * head_dim, queries + t, count - t, mixed + t * head_dim);
    for (int t = 0; t < count; ++t) {
      float* to = out + queries[t].row * out_stride + queries[t].head * head_dim;
      for (int d = 0; d < head_dim; d += kLanes) store(to + d, load(mixed + t * head_dim + d));
    }
  }
};

static void attend(const float* qkv, std::size_t qkv_stride, const HeadLayout& heads, const KvLayer& cache,
                   const AttentionTile& tile, const AttentionTile* next, int begin, int end, int window, float* out,
                   std::size_t out_stride) {
  if (cache.is_half) {
    TileAttention<uint16_t>{qkv, qkv_stride, heads, cache, window, out, out_stride}.run(tile, next, begin, end);
  } else {
    TileAttention<float>{qkv, qkv_stride, heads, cache, window, out, out_stride}.run(tile, next, begin, end);
  }
}
