#include "kernels.h"

namespace trtdecode {

namespace baseline {
extern const Kernels kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kTable;
}
#endif

std::vector<const Kernels*> runnable_kernels() {
    std::vector<const Kernels*> tables;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) tables.push_back(&avx2::kTable);
#endif
    tables.push_back(&baseline::kTable);
    return tables;
}

}  // namespace trtdecode
