// Sixteen lanes in plain C++: the definition of every vector operation, and the path of processors without AVX2.
//
// The three versions give the same bits. No operation depends on the order of lanes except sums of floats, and those
// are left to kernels.h, which adds lanes one way for all.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

constexpr int kRowsAtOnce = 2;     // of a matrix product
constexpr int kVectorsAtOnce = 1;  // of keys, for the most queries

struct Floats { float v[16]; };
struct Ints { int32_t v[16]; };
struct Bytes { int8_t v[64]; };

#define HEADWAY_LANES(result, expression) \
  do {                                    \
    for (int i = 0; i < 16; ++i) result.v[i] = (expression); \
  } while (0)

static inline Floats broadcast(float x) {
  Floats r;
  HEADWAY_LANES(r, x);
  return r;
}
static inline Floats zero() { return broadcast(0.0f); }
static inline Floats load(const float* p) {
  Floats r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }

static inline Floats load(const uint16_t* p) {
  Floats r;
  HEADWAY_LANES(r, half_to_float(p[i]));
  return r;
}
static inline void store(uint16_t* p, Floats a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}
static inline Floats add(Floats a, Floats b) {
  HEADWAY_LANES(a, a.v[i] + b.v[i]);
  return a;
}
static inline Floats sub(Floats a, Floats b) {
  HEADWAY_LANES(a, a.v[i] - b.v[i]);
  return a;
}
static inline Floats mul(Floats a, Floats b) {
  HEADWAY_LANES(a, a.v[i] * b.v[i]);
  return a;
}
static inline Floats div(Floats a, Floats b) {
  HEADWAY_LANES(a, a.v[i] / b.v[i]);
  return a;
}
// a * b + c, rounded once.
static inline Floats fma(Floats a, Floats b, Floats c) {
  HEADWAY_LANES(c, std::fma(a.v[i], b.v[i], c.v[i]));
  return c;
}
static inline Floats larger(Floats a, Floats b) {
  HEADWAY_LANES(a, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
  return a;
}
static inline Floats absolute(Floats a) {
  HEADWAY_LANES(a, std::fabs(a.v[i]));
  return a;
}
// Lanes 0 and 1 change places, 2 and 3, and so on.
static inline Floats swap_pairs(Floats a) {
  Floats r;
  HEADWAY_LANES(r, a.v[i ^ 1]);
  return r;
}
// a, but 0 in the lanes where x < limit.
static inline Floats zero_where_less(Floats x, float limit, Floats a) {
  HEADWAY_LANES(a, x.v[i] >= limit ? a.v[i] : 0.0f);
  return a;
}
static inline bool any_larger(Floats a, Floats b) {
  bool any = false;
  for (int i = 0; i < 16; ++i) any |= a.v[i] > b.v[i];
  return any;
}
static inline float largest(Floats a) {
  float most = a.v[0];
  for (int i = 1; i < 16; ++i) most = a.v[i] > most ? a.v[i] : most;
  return most;
}
// To nearest, ties to even.
static inline Ints to_ints(Floats a) {
  Ints r;
  HEADWAY_LANES(r, static_cast<int32_t>(std::lrintf(a.v[i])));
  return r;
}
static inline Floats to_floats(Ints a) {
  Floats r;
  HEADWAY_LANES(r, static_cast<float>(a.v[i]));
  return r;
}
// 2^n for -127 < n < 128.
static inline Floats power_of_two(Ints n) {
  Floats r;
  for (int i = 0; i < 16; ++i) {
    const uint32_t word = static_cast<uint32_t>(n.v[i] + 127) << 23;
    std::memcpy(&r.v[i], &word, 4);
  }
  return r;
}
static inline int32_t sum(Ints a, Ints b) {
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += a.v[i] + b.v[i];
  return total;
}
static inline void store_bytes(int8_t* p, Ints a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}

static inline void prefetch(const void*) {}

// Sixteen dot products of levels and activations, four of each at a time, from 0 on. `Dots` is for levels of a byte and
// `SmallDots` for sixteen levels; either may be kept in whatever way, until `finish` makes sums of it. At most kGroup
// products are added before that; `sum` is the sum of their activations.
struct Dots { int32_t v[16]; };
struct SmallDots { int32_t v[16]; };

// Sixteen outputs' levels for four inputs.
static inline Bytes load_levels(const uint8_t* p) {
  Bytes r;
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<int8_t>(p[i] - 128);
  return r;
}
static inline void split_nibbles(const uint8_t* p, Bytes& low, Bytes& high) {
  for (int i = 0; i < 64; ++i) {
    low.v[i] = static_cast<int8_t>(p[i] & 15);
    high.v[i] = static_cast<int8_t>(p[i] >> 4);
  }
}
static inline Bytes broadcast_activations(const int8_t* p) {
  Bytes r;
  for (int i = 0; i < 64; ++i) r.v[i] = p[i & 3];
  return r;
}
template <class D>
static inline D dot(D dots, Bytes levels, Bytes activations) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) dots.v[i] += levels.v[4 * i + j] * activations.v[4 * i + j];
  return dots;
}
static inline Ints finish(Dots dots, int32_t sum) {
  Ints r;
  HEADWAY_LANES(r, dots.v[i] + 128 * sum);
  return r;
}
static inline Ints finish(SmallDots dots, int32_t) {
  Ints r;
  HEADWAY_LANES(r, dots.v[i]);
  return r;
}
