// The C interface. `library.py` mirrors these structs with ctypes; keep the two alike.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define HEADWAY_ABI 2

extern "C" {

struct HeadwayMatrix {
  const uint8_t* panels;  // made by headway_pack
  const float* bias;      // padded to whole panels, or null
  int32_t num_panels;
  int32_t num_groups;
  int32_t num_levels;     // 16 or 256
};

struct HeadwayLayer {
  const float* input_norm;
  const float* post_attention_norm;
  const float* query_norm;  // or null
  const float* key_norm;    // or null
  HeadwayMatrix qkv, output, gate_up, down;
  int32_t window;           // tokens that a query sees, itself included; 0 is all
};

struct HeadwayModel {
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size;
  float norm_epsilon;
  const float* embedding;   // [vocab_size, hidden_size]
  const float* final_norm;
  HeadwayMatrix head;
  const HeadwayLayer* layers;
};

struct HeadwayCache {
  void* blocks;             // [layer][block][key or value][kv head][block_size * head_dim]
  uint64_t layer_bytes;
  int32_t block_size;
  int32_t is_half;
};

struct HeadwayStep {
  int32_t num_rows, num_spans, num_sampled, num_logit_rows;
  const int32_t* token_ids;     // [num_rows]
  const float* cosines;         // [positions, head_dim], as many as are needed; each cosine twice
  const float* sines;           // the same; -sin, then sin
  const int32_t* spans;         // [num_spans, 4]: first row, number of rows, first position, start in `tables`
  const int32_t* tables;        // block ids
  const int32_t* sampled_rows;  // [num_sampled]; the first num_logit_rows of them want their logits
  float* logits;                // [num_logit_rows, head.num_panels * 32]
  int32_t* best_tokens;         // [num_sampled]; of the others, the token with the largest logit
};

int headway_abi(void);
// The best instruction set of this processor that was compiled in: "avx512", "avx2" or "portable".
const char* headway_best_isa(void);

// With how many levels [num_outputs, num_inputs] is to be packed: 16 if nothing is lost by it, otherwise 256.
int32_t headway_levels(void* engine, const float* weights, int32_t num_outputs, int32_t num_inputs);
size_t headway_packed_bytes(int32_t num_outputs, int32_t num_inputs, int32_t num_levels);
// Packs [num_outputs, num_inputs] into 64-byte aligned memory. With `gated`, the first half of the outputs are gates
// and the second half the ups; they are interleaved in sixteens.
void headway_pack(void* engine, const float* weights, int32_t num_outputs, int32_t num_inputs, int32_t num_levels,
                  int32_t gated, uint8_t* out);

// An engine is threads, scratch memory and a choice of instruction set; null if this processor lacks it.
void* headway_open(int32_t num_threads, const char* isa);
void headway_close(void* engine);

// One step: all rows through all layers. Not to be called by two threads on one engine at once.
void headway_forward(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step);

// Single kernels, for tests and benchmarks.
// x [num_rows, num_inputs] in bytes times a packed matrix -> out [num_rows, num_panels * 32].
void headway_multiply(void* engine, const float* x, int32_t num_rows, const HeadwayMatrix* matrix, float* out);
// The bytes, scales and sums that `headway_multiply` would use.
void headway_quantize(void* engine, const float* x, int32_t num_rows, int32_t num_inputs, int8_t* bytes, float* scales,
                      int32_t* sums);
// Attention of a step's rows over one layer of the cache: qkv [num_rows, stride] -> out [num_rows, num_heads * head_dim].
void headway_attend(void* engine, const HeadwayModel* model, const HeadwayCache* cache, const HeadwayStep* step,
                    int32_t layer, const float* qkv, int32_t qkv_stride, float* out);
}
