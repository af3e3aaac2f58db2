// What every CPU of the architecture runs: SSE2 on x86-64.
#define TRTDECODE_KERNELS attention_baseline
#define TRTDECODE_KERNELS_NAME "baseline"
#include "kernels_impl.h"
