// The kernels over vec_avx2.h; compiled with the flags of that instruction set, and called only where it is present.
#if defined(__x86_64__)
#include <initializer_list>

#include "kernels.h"
#include "vec_avx2.h"

#define HEADWAY_UNROLL(n) _Pragma(HEADWAY_TEXT(GCC unroll n))
#define HEADWAY_TEXT(x) #x

namespace headway {
namespace {
#include "kernels_impl.h"
}

extern const Kernels kAvx2Kernels = {"avx2", quantize, norm_quantize, multiply, rotate_and_store, attend};
}  // namespace headway
#endif
