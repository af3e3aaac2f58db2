// CMakeLists.txt compiles this file, and no other, for CPUs with AVX2.
#if defined(__x86_64__)
#define TRTDECODE_KERNELS attention_avx2
#define TRTDECODE_KERNELS_NAME "avx2"
#include "kernels_impl.h"
#endif
