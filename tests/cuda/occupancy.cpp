/* Blocks that fit on one multiprocessor, as the toolkit's own cuda_occupancy.h computes it; no device
 * is needed.  occupancy ARCH REGISTERS THREADS STATIC DYNAMIC */
#include <cuda_occupancy.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    long values[5];
    for (int i = 0; i < 5; i++)
        values[i] = std::strtol(argv[i + 1], nullptr, 10);
    bool hopper = values[0] == 90;
    cudaOccDeviceProp p = {};
    p.computeMajor = hopper ? 9 : 8;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiprocessor = 2048;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32;
    p.sharedMemPerBlock = 49152;
    p.sharedMemPerMultiprocessor = hopper ? 233472 : 167936;
    p.sharedMemPerBlockOptin = hopper ? 232448 : 166912;
    p.reservedSharedMemPerBlock = 1024;
    p.numSms = hopper ? 132 : 108;
    cudaOccFuncAttributes f = {};
    f.maxThreadsPerBlock = static_cast<int>(values[2]);
    f.numRegs = static_cast<int>(values[1]);
    f.sharedSizeBytes = static_cast<size_t>(values[3]);
    f.partitionedGCConfig = PARTITIONED_GC_OFF;
    f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    f.maxDynamicSharedSizeBytes = static_cast<size_t>(values[4]);
    f.numBlockBarriers = 1;
    cudaOccDeviceState state = {};
    cudaOccResult r = {};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &state, static_cast<int>(values[2]),
                                                static_cast<size_t>(values[4])) != CUDA_OCC_SUCCESS)
        return 1;
    std::printf("%d\n", r.activeBlocksPerMultiprocessor);
    return 0;
}
