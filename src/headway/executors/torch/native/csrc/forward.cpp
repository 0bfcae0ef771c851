#include "forward.h"

#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headway {
namespace {

// Rows that a thread takes through a layer at once: all that is known of them is to stay in its own cache.
constexpr int kMostRowsEach = 24;
// Fewer are not worth reading all weights for.
constexpr int kLeastRowsEach = 4;
// Rows of an item of a product that all threads share.
constexpr int kMostRowsOfItem = 264;
// Rows times panels times groups of an item of a product: some ten microseconds, or handing it out costs too much.
constexpr long kLeastWork = 1500;
// Reading weights takes as long as multiplying them with so many rows.
constexpr int kRowsOfReading = 4;
// Items for each thread, where there is enough work: a thread that the system delays then leaves more to the others.
constexpr int kItemsPerThread = 8;
// Tiles of attention that one item has at most.
constexpr int kMostTilesEach = 4;

int divide_up(int a, int b) { return (a + b - 1) / b; }
int least(int a, int b) { return a < b ? a : b; }
int most(int a, int b) { return a > b ? a : b; }
int whole_tiles(int num_rows) { return divide_up(num_rows, kTileRows) * kTileRows; }

// A product cut into items: blocks of rows times ranges of panels.
struct Cut {
  int num_rows, rows_each, num_blocks;
  int num_panels, num_parts;

  Cut(int num_threads, int num_rows, const HeadwayMatrix& matrix) : num_rows(num_rows), num_panels(matrix.num_panels) {
    const long work = static_cast<long>(num_rows + kRowsOfReading) * matrix.num_panels * matrix.num_groups;
    const long affordable = work / kLeastWork / num_threads;
    const int num_wanted = num_threads * static_cast<int>(affordable < 1 ? 1 : least(affordable, kItemsPerThread));
    num_blocks = most(divide_up(num_rows, kMostRowsOfItem),
                      least(divide_up(num_wanted, num_panels), most(1, num_rows / kLeastRowsEach)));
    rows_each = whole_tiles(divide_up(num_rows, num_blocks));
    num_blocks = divide_up(num_rows, rows_each);
    num_parts = least(divide_up(num_wanted, num_blocks), num_panels);
  }

  // f(part, first row, number of rows, first panel, last panel + 1)
  template <class F>
  void run(Pool& pool, const F& f) const {
    pool.run(num_blocks * num_parts, [&](int item) {
      const int first = item / num_parts * rows_each, part = item % num_parts;
      f(part, first, least(rows_each, num_rows - first), part * num_panels / num_parts, (part + 1) * num_panels / num_parts);
    });
  }
};

PackedMatrix packed(const HeadwayMatrix& matrix) {
  return {matrix.panels, matrix.bias, matrix.num_panels, matrix.num_groups, matrix.num_levels};
}

Destination to_rows(Output output, float* rows, std::size_t stride) { return {output, rows, stride, 0, 0, nullptr, nullptr}; }

// Consecutive rows of a step that go through a part of a layer together. Their activations begin at these addresses.
struct Block {
  int first, count;
  float *hidden, *qkv, *mixed, *gated;
  QuantRows normed, mixed_bytes, gated_bytes;
};

// A block's rows on the calling thread alone.
struct Alone {
  const Kernels& kernels;

  template <class F>
  void for_rows(int count, const F& f) const {
    f(0, count);
  }
  void multiply(const QuantRows& x, int count, const HeadwayMatrix& matrix, const Destination& out) const {
    kernels.multiply(x, 0, count, packed(matrix), 0, matrix.num_panels, out);
  }
};

// A block's rows on all threads: in turn they share out rows, and the columns of products.
struct Together {
  Engine& engine;

  template <class F>
  void for_rows(int count, const F& f) const {
    const int each = whole_tiles(divide_up(count, engine.pool.num_threads() * kItemsPerThread));
    engine.pool.run(divide_up(count, each), [&](int item) { f(item * each, least(each, count - item * each)); });
  }
  void multiply(const QuantRows& x, int count, const HeadwayMatrix& matrix, const Destination& out) const {
    headway::multiply(engine, x, count, matrix, out);
  }
};

class Pass {
 public:
  Pass(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step)
      : engine_(engine), kernels_(engine.kernels), model_(model), cache_(cache), step_(step), num_rows_(step.num_rows) {
    q_size_ = model.num_heads * model.head_dim;
    qkv_stride_ = model.num_layers > 0 ? static_cast<std::size_t>(model.layers[0].qkv.num_panels) * kColumns : 0;
    hidden_ = engine.hidden.get(static_cast<std::size_t>(num_rows_) * model.hidden_size);
    qkv_ = engine.qkv.get(num_rows_ * qkv_stride_);
    mixed_ = engine.mixed.get(static_cast<std::size_t>(num_rows_) * q_size_);
    places_ = engine.places.get(num_rows_);
    find_places();
    cut_tiles();
  }

  void run() {
    embed();
    between_attentions(-1);
    for (int l = 0; l < model_.num_layers; ++l) {
      if (l + 1 == model_.num_layers) keep_sampled_tiles();
      attend_all(l, qkv_, qkv_stride_, mixed_);
      if (l + 1 == model_.num_layers) keep_sampled();
      if (num_rows_ == 0) return;
      between_attentions(l);
    }
    head();
  }

  void attend_all(int layer, const float* qkv, std::size_t stride, float* out) {
    const int threads = engine_.pool.num_threads(), num_kv_heads = model_.num_kv_heads;
    const bool by_head = num_tiles_ < 4 * threads;
    const int each = by_head ? 1 : most(1, least(kMostTilesEach, num_tiles_ / (threads * kItemsPerThread)));
    const int num_items = divide_up(num_tiles_, each) * (by_head ? num_kv_heads : 1);
    engine_.pool.run(num_items, [&](int item) {
      const int first = (by_head ? item / num_kv_heads : item) * each;
      const int begin = by_head ? item % num_kv_heads : 0, end = by_head ? begin + 1 : num_kv_heads;
      for (int t = first; t < least(first + each, num_tiles_); ++t)
        kernels_.attend(qkv, stride, heads(model_.layers[layer]), kv(layer), tiles_[t],
                        t + 1 < num_tiles_ ? &tiles_[t + 1] : nullptr, begin, end, model_.layers[layer].window, out, q_size_);
    });
  }

 private:
  const int32_t* span(int s) const { return step_.spans + 4 * s; }

  HeadLayout heads(const HeadwayLayer& layer) const {
    return {model_.num_heads, model_.num_kv_heads, model_.head_dim, layer.query_norm, layer.key_norm, model_.norm_epsilon};
  }

  KvLayer kv(int layer) const {
    return {static_cast<char*>(cache_.blocks) + layer * cache_.layer_bytes, cache_.is_half != 0, cache_.block_size};
  }

  void find_places() {
    for (int s = 0; s < step_.num_spans; ++s) {
      const int32_t* table = step_.tables + span(s)[3];
      for (int r = 0; r < span(s)[1]; ++r) {
        const int position = span(s)[2] + r;
        places_[span(s)[0] + r] = {position, table[position / cache_.block_size], position % cache_.block_size};
      }
    }
  }

  // Tiles have rows of one request, and if possible all heads that share a kv head among the queries of one go.
  void cut_tiles() {
    const int each = most(1, kMaxQueries / (model_.num_heads / model_.num_kv_heads));
    num_tiles_ = 0;
    for (int s = 0; s < step_.num_spans; ++s) num_tiles_ += divide_up(span(s)[1], each);
    tiles_ = engine_.tiles.get(num_tiles_);
    AttentionTile* tile = tiles_;
    for (int s = 0; s < step_.num_spans; ++s)
      for (int done = 0; done < span(s)[1]; done += each)
        *tile++ = {step_.tables + span(s)[3], span(s)[0] + done, least(each, span(s)[1] - done), span(s)[2] + done};
  }

  // ------------------------------------------------------------------ layers

  // All rows from one attention to the next: the rest of layer l, if it is one, and the beginning of layer l + 1. Keys and
  // values of all rows are stored before any are read: a request may share a block that another one fills now.
  //
  // With many rows, each thread takes a few of them all the way, and they stay in its own cache. With few rows that would
  // leave threads idle, and all of them would read all weights: they go step by step, and each has a part of the columns.
  void between_attentions(int l) {
    const int threads = engine_.pool.num_threads();
    if (threads > 1 && num_rows_ < threads * kLeastRowsEach) {
      between_attentions(l, block(0, num_rows_), Together{engine_});
      return;
    }
    const int num_blocks = threads * divide_up(num_rows_, threads * kMostRowsEach);
    // Not to whole tiles: equal shares are worth more. But a tile of one row takes as long as one of two.
    const auto cut = [&](int i) { return i == num_blocks ? num_rows_ : i * num_rows_ / num_blocks / 2 * 2; };
    engine_.pool.run(num_blocks, [&](int i) {
      if (cut(i) < cut(i + 1)) between_attentions(l, block(cut(i), cut(i + 1) - cut(i)), Alone{kernels_});
    });
  }

  template <class Sharing>
  void between_attentions(int l, const Block& block, const Sharing& sharing) {
    if (l >= 0) finish_layer(l, block, sharing);
    if (l + 1 < model_.num_layers) begin_layer(l + 1, block, sharing);
  }

  Block block(int first, int count) {
    BlockScratch& scratch = engine_.scratch[Pool::worker()];
    return {first,
            count,
            hidden_ + static_cast<std::size_t>(first) * model_.hidden_size,
            qkv_ + first * qkv_stride_,
            mixed_ + static_cast<std::size_t>(first) * q_size_,
            scratch.gated.get(static_cast<std::size_t>(count) * model_.intermediate_size),
            scratch.normed.rows(count, model_.hidden_size),
            scratch.mixed_bytes.rows(count, q_size_),
            scratch.gated_bytes.rows(count, model_.intermediate_size)};
  }

  template <class Sharing>
  void begin_layer(int l, const Block& block, const Sharing& sharing) {
    const HeadwayLayer& layer = model_.layers[l];
    norm(block, layer.input_norm, sharing);
    sharing.multiply(block.normed, block.count, layer.qkv, to_rows(Output::kStore, block.qkv, qkv_stride_));
    const std::size_t width = model_.head_dim;
    sharing.for_rows(block.count, [&](int first, int count) {
      for (int r = first; r < first + count; ++r) {
        const RowPlace& place = places_[block.first + r];
        kernels_.rotate_and_store(block.qkv + r * qkv_stride_, heads(layer), step_.cosines + place.position * width,
                                  step_.sines + place.position * width, kv(l), place.block, place.slot);
      }
    });
  }

  template <class Sharing>
  void finish_layer(int l, const Block& block, const Sharing& sharing) {
    const HeadwayLayer& layer = model_.layers[l];
    const std::size_t width = model_.intermediate_size;
    const Destination to_hidden = to_rows(Output::kAdd, block.hidden, model_.hidden_size);
    quantize(block.mixed, q_size_, block.count, block.mixed_bytes, sharing);
    sharing.multiply(block.mixed_bytes, block.count, layer.output, to_hidden);
    norm(block, layer.post_attention_norm, sharing);
    sharing.multiply(block.normed, block.count, layer.gate_up, to_rows(Output::kGate, block.gated, width));
    quantize(block.gated, width, block.count, block.gated_bytes, sharing);
    sharing.multiply(block.gated_bytes, block.count, layer.down, to_hidden);
  }

  template <class Sharing>
  void norm(const Block& block, const float* weight, const Sharing& sharing) {
    sharing.for_rows(block.count, [&](int first, int count) {
      kernels_.norm_quantize(block.hidden, model_.hidden_size, first, count, weight, model_.norm_epsilon, block.normed);
    });
  }

  template <class Sharing>
  void quantize(const float* x, std::size_t stride, int count, const QuantRows& out, const Sharing& sharing) {
    sharing.for_rows(count, [&](int first, int num_rows) { kernels_.quantize(x, stride, first, num_rows, out); });
  }

  // ------------------------------------------------------------------ before and behind the layers

  void embed() {
    const std::size_t width = model_.hidden_size;
    for (int r = 0; r < num_rows_; ++r)
      std::memcpy(hidden_ + r * width, model_.embedding + step_.token_ids[r] * width, width * sizeof(float));
  }

  // Behind the last keys and values a row matters to itself alone, and only the sampled ones are wanted.
  void keep_sampled_tiles() {
    bool* wanted = engine_.wanted.get(num_rows_);
    std::memset(wanted, 0, num_rows_);
    for (int i = 0; i < step_.num_sampled; ++i) wanted[step_.sampled_rows[i]] = true;
    int count = 0;
    for (int t = 0; t < num_tiles_; ++t)
      if (std::memchr(wanted + tiles_[t].first_row, 1, tiles_[t].num_rows) != nullptr) tiles_[count++] = tiles_[t];
    num_tiles_ = count;
  }

  void keep_sampled() {
    num_rows_ = step_.num_sampled;
    hidden_ = gather(hidden_, model_.hidden_size, engine_.sampled_hidden);
    mixed_ = gather(mixed_, q_size_, engine_.sampled_mixed);
  }

  float* gather(const float* rows, std::size_t width, Scratch<float>& scratch) {
    float* out = scratch.get(num_rows_ * width);
    for (int i = 0; i < num_rows_; ++i)
      std::memcpy(out + i * width, rows + step_.sampled_rows[i] * width, width * sizeof(float));
    return out;
  }

  // Each part of the columns reports its best for rows whose logits are not wanted.
  void head() {
    const Block all = block(0, num_rows_);
    norm(all, model_.final_norm, Together{engine_});
    const Cut cut(engine_.pool.num_threads(), num_rows_, model_.head);
    float* values = engine_.best_values.get(static_cast<std::size_t>(cut.num_parts) * num_rows_);
    int32_t* columns = engine_.best_columns.get(static_cast<std::size_t>(cut.num_parts) * num_rows_);
    cut.run(engine_.pool, [&](int part, int first, int count, int begin, int end) {
      Destination out = to_rows(Output::kHead, step_.logits, static_cast<std::size_t>(model_.head.num_panels) * kColumns);
      out.num_logit_rows = step_.num_logit_rows;
      out.num_outputs = model_.vocab_size;
      out.best_values = values + static_cast<std::size_t>(part) * num_rows_;
      out.best_columns = columns + static_cast<std::size_t>(part) * num_rows_;
      for (int i = first; i < first + count; ++i) {
        out.best_values[i] = -__builtin_inff();
        out.best_columns[i] = begin * kColumns;
      }
      kernels_.multiply(all.normed, first, count, packed(model_.head), begin, end, out);
    });
    for (int i = step_.num_logit_rows; i < num_rows_; ++i)
      step_.best_tokens[i] = best_of(values, columns, cut.num_parts, i);
  }

  // The first of the largest, so that it does not matter how columns were cut.
  int32_t best_of(const float* values, const int32_t* columns, int num_parts, int row) const {
    int best = row;
    for (int part = 1; part < num_parts; ++part)
      if (values[part * num_rows_ + row] > values[best]) best = part * num_rows_ + row;
    return columns[best];
  }

  Engine& engine_;
  const Kernels& kernels_;
  const HeadwayModel& model_;
  const HeadwayCache& cache_;
  const HeadwayStep& step_;
  int num_rows_;
  int q_size_;
  std::size_t qkv_stride_;
  float *hidden_, *qkv_, *mixed_;
  RowPlace* places_;
  AttentionTile* tiles_;
  int num_tiles_;
};

}  // namespace

void* aligned_memory(std::size_t size) {
  constexpr std::size_t huge = std::size_t{2} << 20;
  const std::size_t alignment = size < huge ? 64 : huge;
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (size >= huge) madvise(memory, size, MADV_HUGEPAGE);
#endif
  return memory;
}

QuantRows QuantScratch::rows(int num_rows, int num_inputs) {
  const int num_groups = num_inputs / kGroup;
  return {groups.get(static_cast<std::size_t>(divide_up(num_rows, kTileRows)) * num_groups), num_groups};
}

void multiply(Engine& engine, const QuantRows& x, int num_rows, const HeadwayMatrix& matrix, const Destination& out) {
  Cut(engine.pool.num_threads(), num_rows, matrix).run(engine.pool, [&](int, int first, int count, int begin, int end) {
    engine.kernels.multiply(x, first, count, packed(matrix), begin, end, out);
  });
}

void forward(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step) {
  if (step.num_rows > 0) Pass(engine, model, cache, step).run();
}

void attend_rows(Engine& engine, const HeadwayModel& model, const HeadwayCache& cache, const HeadwayStep& step, int layer,
                 const float* qkv, std::size_t qkv_stride, float* out) {
  Pass(engine, model, cache, step).attend_all(layer, qkv, qkv_stride, out);
}

}  // namespace headway
