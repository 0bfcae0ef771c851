// The kernels over vec_portable.h; compiled with the flags of that instruction set, and called only where it is present.
#include <initializer_list>

#include "kernels.h"
#include "vec_portable.h"

#define HEADWAY_UNROLL(n)

namespace headway {
namespace {
#include "kernels_impl.h"
}

extern const Kernels kPortableKernels = {"portable", quantize, norm_quantize, multiply, rotate_and_store, attend};
}  // namespace headway
