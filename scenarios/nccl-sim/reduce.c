/* Element arithmetic: sizes, reduction and division of every datatype that can be reduced on the host. */
#include <math.h>
#include <string.h>
#include "sim.h"

size_t sim_type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
  }
  return 0;
}

static float half_to_float(uint16_t h) {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                    : exponent ? ldexpf((float)(mantissa + 1024), exponent - 25) : ldexpf((float)mantissa, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}

static uint16_t float_to_half(float f) {
  uint16_t sign = signbit(f) ? 0x8000 : 0;
  float a = fabsf(f);
  if (isnan(f)) return sign | 0x7e00;
  if (a >= 65520.0f) return sign | 0x7c00;
  int exponent;
  frexpf(a, &exponent); /* a = m * 2^exponent, m in [0.5, 1) */
  if (exponent < -13) exponent = -13;
  float scaled = rintf(ldexpf(a, 11 - exponent)); /* 11 significant bits, to nearest even */
  if (scaled >= 2048.0f) { scaled /= 2; exponent++; }
  if (scaled < 1024.0f) return sign | (uint16_t)scaled; /* subnormal */
  return (uint16_t)(sign | ((exponent + 14) << 10) | ((uint16_t)scaled - 1024));
}

static float bf16_to_float(uint16_t b) {
  uint32_t bits = (uint32_t)b << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static uint16_t float_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (isnan(f)) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define APPLY(a, b) \
  (op == ncclProd ? (a) * (b) : op == ncclMax ? ((a) > (b) ? (a) : (b)) : op == ncclMin ? ((a) < (b) ? (a) : (b)) : (a) + (b))
/* Unsigned arithmetic for the sums and products of signed integers: they wrap, as on a GPU. */
#define LOOP(T, W)                                                                       \
  do {                                                                                   \
    T *x = into;                                                                         \
    const T *y = other;                                                                  \
    for (size_t i = 0; i < count; i++)                                                   \
      x[i] = op == ncclSum || op == ncclAvg ? (T)((W)x[i] + (W)y[i])                     \
             : op == ncclProd               ? (T)((W)x[i] * (W)y[i])                     \
                                            : (T)APPLY(x[i], y[i]);                      \
  } while (0)
#define LOOP16(to_float, from_float)                                                     \
  do {                                                                                   \
    uint16_t *x = into;                                                                  \
    const uint16_t *y = other;                                                           \
    for (size_t i = 0; i < count; i++) {                                                 \
      float a = to_float(x[i]), b = to_float(y[i]);                                      \
      x[i] = from_float(APPLY(a, b));                                                    \
    }                                                                                    \
  } while (0)

int sim_reduce(void *into, const void *other, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  if ((int)op < 0 || op > ncclAvg) return 0;
  switch (type) {
    case ncclInt8: LOOP(int8_t, uint64_t); return 1;
    case ncclUint8: LOOP(uint8_t, uint64_t); return 1;
    case ncclInt32: LOOP(int32_t, uint64_t); return 1;
    case ncclUint32: LOOP(uint32_t, uint64_t); return 1;
    case ncclInt64: LOOP(int64_t, uint64_t); return 1;
    case ncclUint64: LOOP(uint64_t, uint64_t); return 1;
    case ncclFloat32: LOOP(float, float); return 1;
    case ncclFloat64: LOOP(double, double); return 1;
    case ncclFloat16: LOOP16(half_to_float, float_to_half); return 1;
    case ncclBfloat16: LOOP16(bf16_to_float, float_to_bf16); return 1;
    case ncclFloat8e4m3: case ncclFloat8e5m2: return 0;
  }
  return 0;
}

#define DIVIDE(T) \
  do { T *x = into; for (size_t i = 0; i < count; i++) x[i] = (T)(x[i] / (T)n); } while (0)

int sim_divide(void *into, size_t count, ncclDataType_t type, int n) {
  uint16_t *half = into;
  switch (type) {
    case ncclInt8: DIVIDE(int8_t); return 1;
    case ncclUint8: DIVIDE(uint8_t); return 1;
    case ncclInt32: DIVIDE(int32_t); return 1;
    case ncclUint32: DIVIDE(uint32_t); return 1;
    case ncclInt64: DIVIDE(int64_t); return 1;
    case ncclUint64: DIVIDE(uint64_t); return 1;
    case ncclFloat32: DIVIDE(float); return 1;
    case ncclFloat64: DIVIDE(double); return 1;
    case ncclFloat16:
      for (size_t i = 0; i < count; i++) half[i] = float_to_half(half_to_float(half[i]) / (float)n);
      return 1;
    case ncclBfloat16:
      for (size_t i = 0; i < count; i++) half[i] = float_to_bf16(bf16_to_float(half[i]) / (float)n);
      return 1;
    case ncclFloat8e4m3: case ncclFloat8e5m2: return 0;
  }
  return 0;
}
