// IEEE half precision in plain C++.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, bits = half & 1023u;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(bits) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t word = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | bits << 13;
  float result;
  std::memcpy(&result, &word, 4);
  return result;
}

// To nearest even; larger numbers become the largest finite half.
static inline uint16_t float_to_half(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
  float magnitude = std::fabs(x);
  if (!(magnitude <= 65504.0f)) magnitude = 65504.0f;
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::lrintf(magnitude * 0x1p24f));
  std::memcpy(&word, &magnitude, 4);
  word += 0xFFFu + ((word >> 13) & 1u);
  return sign | static_cast<uint16_t>((word >> 13) - (112u << 10));
}
