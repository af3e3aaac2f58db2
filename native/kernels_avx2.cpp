// CMakeLists.txt compiles this file, and no other, with -mavx2.
#if defined(__x86_64__)
#define TRTDECODE_KERNELS avx2
#define TRTDECODE_KERNELS_NAME "avx2"
#include "kernels_impl.h"
#endif
