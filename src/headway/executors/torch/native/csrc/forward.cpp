#include "forward.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace headway {

template <class T>
void Scratch<T>::release() {
  if (data_ != nullptr) ::operator delete(data_, std::align_val_t{64});
  data_ = nullptr;
}

template <class T>
T* Scratch<T>::get(std::size_t count) {
  if (count > capacity_) {
    release();
    data_ = static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64}));
    capacity_ = count;
  }
  return data_;
}

template class Scratch<float>;
template class Scratch<int32_t>;
template class Scratch<int8_t>;

QuantRows QuantScratch::rows(int num_rows, int num_inputs) {
  const int num_groups = num_inputs / kGroup;
  const std::size_t count = static_cast<std::size_t>(num_rows) * num_groups;
  return {bytes.get(count * kGroup), scales.get(count), sums.get(count), totals.get(count), num_groups};
}

PackedMatrix packed(const HeadwayMatrix& matrix) {
  return {matrix.panels, matrix.bias, matrix.num_panels, matrix.num_groups};
}

namespace {

// From this many rows on, threads share out rows: each then keeps its rows in its own cache through a whole layer, and
// reads all weights. With fewer rows, threads share out columns, and each reads its part of the weights.
constexpr int kRowsToSplit = 48;
// Rows of one item when rows are shared out: a multiple of the tile, and few enough to stay in a core's own cache.
constexpr int kMostRowsEach = 66;
// Below this much work, waking another thread costs more than it brings.
constexpr int kRowsWorthSharing = 4;
constexpr int kPanelsPerItem = 4;
constexpr int kHeadPanelsPerItem = 32;

int divide_up(int a, int b) { return (a + b - 1) / b; }
int least(int a, int b) { return a < b ? a : b; }

class Pass {
 public:
  Pass(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step)
      : engine_(engine), kernels_(engine.kernels), model_(model), cache_(cache), step_(step) {
    const int rows = step.num_rows;
    q_size_ = model.num_heads * model.head_dim;
    heads_each_ = model.num_heads / model.num_kv_heads;
    qkv_stride_ = model.num_layers > 0 ? static_cast<std::size_t>(model.layers[0].qkv.num_panels) * kColumns : 0;
    hidden_ = engine.hidden.get(static_cast<std::size_t>(rows) * model.hidden_size);
    qkv_ = engine.qkv.get(rows * qkv_stride_);
    mixed_ = engine.mixed.get(static_cast<std::size_t>(rows) * q_size_);
    gated_ = engine.gated.get(static_cast<std::size_t>(rows) * model.intermediate_size);
    normed_ = engine.normed_bytes.rows(rows, model.hidden_size);
    mixed_bytes_ = engine.mixed_bytes.rows(rows, q_size_);
    gated_bytes_ = engine.gated_bytes.rows(rows, model.intermediate_size);
    span_of_row_ = engine.span_of_row.get(rows);
    for (int s = 0; s < step.num_spans; ++s)
      for (int r = 0; r < span(s)[1]; ++r) span_of_row_[span(s)[0] + r] = s;
  }

  void run() {
    for_rows([&](int first, int count) { embed(first, count); });
    if (step_.num_rows >= kRowsToSplit) {
      layers_by_rows();
    } else {
      for (int l = 0; l < model_.num_layers; ++l) layer_by_columns(l);
    }
    head();
  }

  void attend_all(int layer, const float* qkv, std::size_t stride, float* out) {
    const int num_items = count_row_tiles() * model_.num_kv_heads;
    engine_.pool.run(num_items, [&](int item) {
      const Tile tile = tile_at(item / model_.num_kv_heads);
      attend(layer, qkv, stride, tile.first, tile.count, item % model_.num_kv_heads, out);
    });
  }

 private:
  struct Tile {
    int first, count;
  };

  const int32_t* span(int s) const { return step_.spans + 4 * s; }

  HeadLayout heads(const HeadwayLayer& layer) const {
    return {model_.num_heads, model_.num_kv_heads, model_.head_dim, layer.query_norm, layer.key_norm, model_.norm_epsilon};
  }

  KvLayer kv(int layer) const {
    return {static_cast<char*>(cache_.blocks) + layer * cache_.layer_bytes, cache_.is_half != 0, cache_.block_size};
  }

  Destination destination(Output output, float* rows, std::size_t stride) const {
    return {output, rows, stride, 0, 0, nullptr, nullptr};
  }

  // ------------------------------------------------------------------ parts of a layer, for some rows

  void embed(int first, int count) {
    const std::size_t width = model_.hidden_size;
    for (int r = first; r < first + count; ++r)
      std::memcpy(hidden_ + r * width, model_.embedding + step_.token_ids[r] * width, width * sizeof(float));
  }

  void norm(const float* weight, int first, int count) {
    kernels_.norm_quantize(hidden_, model_.hidden_size, first, count, weight, model_.norm_epsilon, normed_);
  }

  void project(const QuantRows& x, const HeadwayMatrix& matrix, int first, int count, int begin, int end,
               const Destination& out) {
    kernels_.multiply(x, first, count, packed(matrix), begin, end, out);
  }

  void store_tokens(int l, int first, int count) {
    const std::size_t width = model_.head_dim;
    for (int r = first; r < first + count; ++r)
      kernels_.rotate_and_store(qkv_ + r * qkv_stride_, heads(model_.layers[l]), step_.cosines + r * width,
                                step_.sines + r * width, kv(l), step_.kv_blocks[r], step_.kv_slots[r]);
  }

  // Attention of consecutive rows, which may belong to several requests.
  void attend(int l, const float* qkv, std::size_t stride, int first, int count, int kv_head, float* out) {
    const HeadLayout layout = heads(model_.layers[l]);
    Query queries[kMaxQueries];
    int num_queries = 0, of_span = -1;
    const auto flush = [&] {
      if (num_queries > 0)
        kernels_.attend(qkv, stride, layout, kv(l), step_.tables + span(of_span)[3], kv_head, queries, num_queries,
                        model_.layers[l].window, out, q_size_);
      num_queries = 0;
    };
    for (int r = first; r < first + count; ++r) {
      const int s = span_of_row_[r];
      const bool fits = num_queries + heads_each_ <= kMaxQueries || heads_each_ > kMaxQueries;
      if (s != of_span || !fits) flush();
      of_span = s;
      for (int h = 0; h < heads_each_; ++h) {
        if (num_queries == kMaxQueries) flush();
        queries[num_queries++] = {r, kv_head * heads_each_ + h, span(s)[2] + r - span(s)[0]};
      }
    }
    flush();
  }

  // ------------------------------------------------------------------ many rows: share out rows

  // Between a layer's keys being stored and its attention everybody waits; all else of a layer is one row's own affair.
  void layers_by_rows() {
    for_rows([&](int first, int count) { begin_layer(0, first, count); });
    for (int l = 0; l < model_.num_layers; ++l) {
      for_rows([&](int first, int count) {
        end_layer(l, first, count);
        if (l + 1 < model_.num_layers) begin_layer(l + 1, first, count);
      });
    }
  }

  void begin_layer(int l, int first, int count) {
    const HeadwayLayer& layer = model_.layers[l];
    norm(layer.input_norm, first, count);
    project(normed_, layer.qkv, first, count, 0, layer.qkv.num_panels, destination(Output::kStore, qkv_, qkv_stride_));
    store_tokens(l, first, count);
  }

  void end_layer(int l, int first, int count) {
    const HeadwayLayer& layer = model_.layers[l];
    for (int h = 0; h < model_.num_kv_heads; ++h) attend(l, qkv_, qkv_stride_, first, count, h, mixed_);
    kernels_.quantize(mixed_, q_size_, first, count, mixed_bytes_);
    const Destination to_hidden = destination(Output::kAdd, hidden_, model_.hidden_size);
    project(mixed_bytes_, layer.output, first, count, 0, layer.output.num_panels, to_hidden);
    norm(layer.post_attention_norm, first, count);
    project(normed_, layer.gate_up, first, count, 0, layer.gate_up.num_panels,
            destination(Output::kGate, gated_, model_.intermediate_size));
    kernels_.quantize(gated_, model_.intermediate_size, first, count, gated_bytes_);
    project(gated_bytes_, layer.down, first, count, 0, layer.down.num_panels, to_hidden);
  }

  template <class F>
  void for_rows(const F& f) {
    const int rows = step_.num_rows, threads = engine_.pool.num_threads();
    if (rows <= kRowsWorthSharing || threads == 1) {
      // Alone, a thread still goes by few rows at a time, for the sake of its cache.
      for (int first = 0; first < rows; first += kMostRowsEach) f(first, least(kMostRowsEach, rows - first));
      return;
    }
    const int num_rounds = divide_up(rows, threads * kMostRowsEach);
    const int each = divide_up(divide_up(rows, threads * num_rounds), kTileRows) * kTileRows;
    engine_.pool.run(divide_up(rows, each), [&](int item) { f(item * each, least(each, rows - item * each)); });
  }

  // ------------------------------------------------------------------ few rows: share out columns

  void layer_by_columns(int l) {
    const HeadwayLayer& layer = model_.layers[l];
    const Destination to_hidden = destination(Output::kAdd, hidden_, model_.hidden_size);
    for_rows([&](int first, int count) { norm(layer.input_norm, first, count); });
    by_columns(normed_, layer.qkv, destination(Output::kStore, qkv_, qkv_stride_));
    for_rows([&](int first, int count) { store_tokens(l, first, count); });
    attend_all(l, qkv_, qkv_stride_, mixed_);
    for_rows([&](int first, int count) { kernels_.quantize(mixed_, q_size_, first, count, mixed_bytes_); });
    by_columns(mixed_bytes_, layer.output, to_hidden);
    for_rows([&](int first, int count) { norm(layer.post_attention_norm, first, count); });
    by_columns(normed_, layer.gate_up, destination(Output::kGate, gated_, model_.intermediate_size));
    for_rows([&](int first, int count) { kernels_.quantize(gated_, model_.intermediate_size, first, count, gated_bytes_); });
    by_columns(gated_bytes_, layer.down, to_hidden);
  }

  void by_columns(const QuantRows& x, const HeadwayMatrix& matrix, const Destination& out) {
    engine_.pool.run(divide_up(matrix.num_panels, kPanelsPerItem), [&](int item) {
      const int begin = item * kPanelsPerItem, end = least(begin + kPanelsPerItem, matrix.num_panels);
      project(x, matrix, 0, step_.num_rows, begin, end, out);
    });
  }

  // Rows whose queries go together: of one span, and with all heads of a group no more than kMaxQueries.
  int rows_per_tile() const { return heads_each_ >= kMaxQueries ? 1 : kMaxQueries / heads_each_; }

  int count_row_tiles() const {
    int count = 0;
    for (int s = 0; s < step_.num_spans; ++s) count += divide_up(span(s)[1], rows_per_tile());
    return count;
  }

  Tile tile_at(int index) const {
    int s = 0;
    for (; index >= divide_up(span(s)[1], rows_per_tile()); ++s) index -= divide_up(span(s)[1], rows_per_tile());
    const int skipped = index * rows_per_tile();
    return {span(s)[0] + skipped, least(rows_per_tile(), span(s)[1] - skipped)};
  }

  // ------------------------------------------------------------------ logits

  // Only sampled rows: they move to the front, are normed, and meet the head. Each item of columns reports its best.
  void head() {
    const int rows = step_.num_sampled;
    if (rows == 0) return;
    const std::size_t width = model_.hidden_size;
    float* sampled = engine_.mixed.get(rows * width);  // the attention's output is of no more use by now
    for (int i = 0; i < rows; ++i)
      std::memcpy(sampled + i * width, hidden_ + step_.sampled_rows[i] * width, width * sizeof(float));
    const QuantRows x = engine_.normed_bytes.rows(rows, model_.hidden_size);
    kernels_.norm_quantize(sampled, width, 0, rows, model_.final_norm, model_.norm_epsilon, x);
    const int num_items = divide_up(model_.head.num_panels, kHeadPanelsPerItem);
    float* values = engine_.best_values.get(static_cast<std::size_t>(num_items) * rows);
    int32_t* columns = engine_.best_columns.get(static_cast<std::size_t>(num_items) * rows);
    engine_.pool.run(num_items, [&](int item) {
      const int begin = item * kHeadPanelsPerItem, end = least(begin + kHeadPanelsPerItem, model_.head.num_panels);
      Destination out = destination(Output::kHead, step_.logits, static_cast<std::size_t>(model_.head.num_panels) * kColumns);
      out.num_logit_rows = step_.num_logit_rows;
      out.num_outputs = model_.vocab_size;
      out.best_values = values + static_cast<std::size_t>(item) * rows;
      out.best_columns = columns + static_cast<std::size_t>(item) * rows;
      for (int i = 0; i < rows; ++i) {
        out.best_values[i] = -__builtin_inff();
        out.best_columns[i] = begin * kColumns;
      }
      kernels_.multiply(x, 0, rows, packed(model_.head), begin, end, out);
    });
    for (int i = step_.num_logit_rows; i < rows; ++i) step_.best_tokens[i] = best_of(values, columns, num_items, rows, i);
  }

  static int32_t best_of(const float* values, const int32_t* columns, int num_items, int rows, int row) {
    int best = 0;
    for (int item = 1; item < num_items; ++item)
      if (values[item * rows + row] > values[best * rows + row]) best = item;
    return columns[best * rows + row];
  }

  Engine& engine_;
  const Kernels& kernels_;
  const HeadwayModel& model_;
  const HeadwayCache& cache_;
  const HeadwayStep& step_;
  int q_size_, heads_each_;
  std::size_t qkv_stride_;
  float *hidden_, *qkv_, *mixed_, *gated_;
  QuantRows normed_, mixed_bytes_, gated_bytes_;
  int32_t* span_of_row_;
};

}  // namespace

void forward(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step) {
  Pass(engine, model, cache, step).run();
}

void attend_rows(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step, int layer,
                 const float* qkv, std::size_t qkv_stride, float* out) {
  Pass(engine, model, cache, step).attend_all(layer, qkv, qkv_stride, out);
}

}  // namespace headway
