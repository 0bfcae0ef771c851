// Sixteen lanes in one AVX-512 register. See vec_portable.h for what each operation means.
#pragma once
#include <immintrin.h>
#include <cstdint>

constexpr int kRowsAtOnce = 6;     // of a matrix product: with both vectors of a panel, 24 registers hold sums
constexpr int kVectorsAtOnce = 2;  // of keys, for the most queries: 24 registers again

struct Floats { __m512 v; };
struct Ints { __m512i v; };
struct Bytes { __m512i v; };

static inline Floats zero() { return {_mm512_setzero_ps()}; }
static inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline Floats load(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
static inline void store(uint16_t* p, Floats a) {
  const __m512 most = _mm512_set1_ps(65504.0f);
  const __m512 kept = _mm512_max_ps(_mm512_min_ps(a.v, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT));
}
static inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Floats absolute(Floats a) { return {_mm512_abs_ps(a.v)}; }
static inline Floats swap_pairs(Floats a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
static inline Floats zero_where_less(Floats x, float limit, Floats a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_GE_OQ), a.v)};
}
static inline bool any_larger(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
static inline float largest(Floats a) { return _mm512_reduce_max_ps(a.v); }
static inline Ints to_ints(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline Floats power_of_two(Ints n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}
static inline int32_t sum(Ints a, Ints b) { return _mm512_reduce_add_epi32(_mm512_add_epi32(a.v, b.v)); }
static inline void store_bytes(int8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// The instruction multiplies unsigned levels with signed activations: just what is wanted.
struct Dots { __m512i v; };
struct SmallDots { __m512i v; };
static inline Bytes load_levels(const uint8_t* p) { return {_mm512_load_si512(p)}; }
static inline void split_nibbles(const uint8_t* p, Bytes& low, Bytes& high) {
  const __m512i both = _mm512_load_si512(p), mask = _mm512_set1_epi8(15);
  low = {_mm512_and_si512(both, mask)};
  high = {_mm512_and_si512(_mm512_srli_epi16(both, 4), mask)};
}
static inline Bytes broadcast_activations(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return {_mm512_set1_epi32(four)};
}
template <class D>
static inline D dot(D dots, Bytes levels, Bytes activations) {
  return {_mm512_dpbusd_epi32(dots.v, levels.v, activations.v)};
}
template <class D>
static inline Ints finish(D dots, int32_t) {
  return {dots.v};
}
