// Sixteen lanes in two AVX2 registers. See vec_portable.h for what each operation means.
#pragma once
#include <immintrin.h>
#include <cstdint>

constexpr int kRowsAtOnce = 2;     // of a matrix product
constexpr int kVectorsAtOnce = 1;  // of keys, for the most queries

struct Floats { __m256 lo, hi; };
struct Ints { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };

static inline Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline Floats load(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
static inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static inline __m128i to_half(__m256 a) {
  const __m256 most = _mm256_set1_ps(65504.0f);
  const __m256 kept = _mm256_max_ps(_mm256_min_ps(a, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
  return _mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT);
}
static inline void store(uint16_t* p, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_half(a.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), to_half(a.hi));
}
static inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline Floats absolute(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline Floats swap_pairs(Floats a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }
static inline Floats zero_where_less(Floats x, float limit, Floats a) {
  const __m256 bound = _mm256_set1_ps(limit);
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, bound, _CMP_GE_OQ), a.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, bound, _CMP_GE_OQ), a.hi)};
}
static inline bool any_larger(Floats a, Floats b) {
  const __m256 where =
      _mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return _mm256_movemask_ps(where) != 0;
}
static inline float largest(Floats a) {
  float lanes[8];
  _mm256_storeu_ps(lanes, _mm256_max_ps(a.lo, a.hi));
  float most = lanes[0];
  for (int i = 1; i < 8; ++i) most = lanes[i] > most ? lanes[i] : most;
  return most;
}
static inline Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline Floats power_of_two(Ints n) { return {power_of_two(n.lo), power_of_two(n.hi)}; }
static inline int32_t sum(Ints a, Ints b) {
  int32_t lanes[8];
  const __m256i both = _mm256_add_epi32(_mm256_add_epi32(a.lo, a.hi), _mm256_add_epi32(b.lo, b.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), both);
  int32_t total = 0;
  for (int i = 0; i < 8; ++i) total += lanes[i];
  return total;
}
static inline void store_bytes(int8_t* p, Ints a) {
  int32_t lanes[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 8), a.hi);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}

static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// vpmaddubsw adds two products into 16 bits. Levels of a byte become signed, and the product |level| * (activation with
// the level's sign): a pair of those fits. Sixteen levels are so small that a whole group fits, and is widened at its end.
struct Dots { __m256i lo, hi; };
struct SmallDots { __m256i lo, hi; };
static inline Bytes load_levels(const uint8_t* p) {
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_xor_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)), offset),
          _mm256_xor_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32)), offset)};
}
static inline void split_nibbles(__m256i both, __m256i& low, __m256i& high) {
  const __m256i mask = _mm256_set1_epi8(15);
  low = _mm256_and_si256(both, mask);
  high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
}
static inline void split_nibbles(const uint8_t* p, Bytes& low, Bytes& high) {
  split_nibbles(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)), low.lo, high.lo);
  split_nibbles(_mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32)), low.hi, high.hi);
}
static inline Bytes broadcast_activations(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
}
static inline __m256i dot(__m256i sum, __m256i levels, __m256i activations) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels), _mm256_sign_epi8(activations, levels));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline Dots dot(Dots dots, Bytes levels, Bytes activations) {
  return {dot(dots.lo, levels.lo, activations.lo), dot(dots.hi, levels.hi, activations.hi)};
}
static inline SmallDots dot(SmallDots dots, Bytes levels, Bytes activations) {
  return {_mm256_add_epi16(dots.lo, _mm256_maddubs_epi16(levels.lo, activations.lo)),
          _mm256_add_epi16(dots.hi, _mm256_maddubs_epi16(levels.hi, activations.hi))};
}
static inline Ints finish(Dots dots, int32_t sum) {
  const __m256i most = _mm256_set1_epi32(128 * sum);
  return {_mm256_add_epi32(dots.lo, most), _mm256_add_epi32(dots.hi, most)};
}
static inline Ints finish(SmallDots dots, int32_t) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(dots.lo, ones), _mm256_madd_epi16(dots.hi, ones)};
}
