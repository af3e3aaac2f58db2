// CMakeLists.txt compiles this file, and no other, for CPUs with AVX512.
#if defined(__x86_64__)
#define TRTDECODE_KERNELS attention_avx512
#define TRTDECODE_KERNELS_NAME "avx512"
#include "kernels_impl.h"
#endif
