/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What dlsym finds in a library that calls itself NCCL, of version STUB_VERSION. STUB_LACKS_ALL_GATHER and STUB_IS_OLD
 * leave functions out. None can be called but ncclGetVersion, which returns STUB_RESULT.
 */

typedef int result;

result ncclGetVersion(int *version);
result ncclGetVersion(int *version) {
    *version = STUB_VERSION;
    return STUB_RESULT;
}

#define STUB(name)                                                                                                     \
    result name(void);                                                                                                 \
    result name(void) {                                                                                                \
        return 1;                                                                                                      \
    }

STUB(ncclGetUniqueId)
STUB(ncclCommInitRankConfig)
STUB(ncclCommFinalize)
STUB(ncclCommDestroy)
STUB(ncclCommAbort)
STUB(ncclCommCount)
STUB(ncclCommUserRank)
STUB(ncclCommCuDevice)
STUB(ncclCommGetAsyncError)
STUB(ncclGetErrorString)
STUB(ncclGetLastError)
STUB(ncclGroupStart)
STUB(ncclGroupEnd)
STUB(ncclRedOpCreatePreMulSum)
STUB(ncclRedOpDestroy)
STUB(ncclAllReduce)
#ifndef STUB_LACKS_ALL_GATHER
STUB(ncclAllGather)
#endif
STUB(ncclBroadcast)
STUB(ncclSend)
STUB(ncclRecv)
#ifndef STUB_IS_OLD
STUB(ncclCommSplit)
STUB(ncclAlltoAll)
#endif
