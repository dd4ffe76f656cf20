/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include "control.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace simcuda {

namespace {

constexpr size_t alignment = 256;

/* So many freed allocations keep their addresses, so that late touches fault. */
constexpr size_t freed_max = 1024;

struct Block {
    Allocation allocation;
    char *mapping; /* null in host memory */
    size_t mapping_bytes;
    unsigned users;
};

/* Never destroyed: workers outlive main. */
struct State {
    Lock lock;
    std::map<uintptr_t, Block> blocks; /* by their start */
    std::deque<std::pair<char *, size_t>> freed;
    struct sigaction before = {};
};

/* What the operation on this thread has open. Read by a signal handler, so it may not be allocated on first use. */
struct Opened {
    bool is_worker;
    const char *operation;
    const std::string *stream;
    std::vector<uintptr_t> *blocks;
    /* What the signal handler had to open. A handler may not allocate; an operation that touches more than this dies.
     */
    uintptr_t undeclared[16];
    unsigned undeclared_count;
};
__attribute__((tls_model("initial-exec"))) thread_local Opened opened = {};

void on_fault(int signal, siginfo_t *info, void *context);

State &state() {
    static State *const state = new State;
    return *state;
}

/* Again and again, since cmocka puts a handler of its own before every test. */
void handle_faults() {
    struct sigaction now = {};
    sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_sigaction == on_fault) {
        return;
    }
    state().before = now;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
}

size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

Block *find(uintptr_t address, bool with_guard_pages) {
    auto after = state().blocks.upper_bound(address);
    if (after == state().blocks.begin()) {
        return nullptr;
    }
    Block &block = std::prev(after)->second;
    const uintptr_t start = reinterpret_cast<uintptr_t>(block.allocation.start);
    const size_t bytes = with_guard_pages ? block.mapping_bytes : std::max(block.allocation.bytes, size_t{1});
    return address - start < bytes ? &block : nullptr;
}

void protect(const Block &block, int protection) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mprotect(block.mapping, block.mapping_bytes - page, protection); /* the last page is the guard */
}

void open_block(Block &block) {
    if (block.users++ == 0) {
        protect(block, PROT_READ | PROT_WRITE);
    }
}

void open_declared(Block &block) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(block.allocation.start);
    auto &mine = *opened.blocks;
    if (block.mapping != nullptr && std::find(mine.begin(), mine.end(), start) == mine.end()) {
        mine.push_back(start);
        open_block(block);
    }
}

/* Whether the operation on this worker may go on. */
bool open_undeclared(uintptr_t address) {
    Guard guard(state().lock);
    Block *const block = find(address, false);
    if (block == nullptr || block->mapping == nullptr ||
        opened.undeclared_count == sizeof opened.undeclared / sizeof opened.undeclared[0]) {
        return false;
    }
    opened.undeclared[opened.undeclared_count++] = reinterpret_cast<uintptr_t>(block->allocation.start);
    open_block(*block);
    return true;
}

void report_undeclared(const Block &block) {
    report_add(SIMCUDA_UNDECLARED, {"", ""}, {opened.operation, *opened.stream},
               std::string("\"") + opened.operation + "\" on " + *opened.stream +
                   " touches device memory that its launch did not declare: an allocation of " +
                   std::to_string(block.allocation.bytes) + " bytes");
}

void close_block(Block &block) {
    if (--block.users == 0) {
        protect(block, PROT_NONE);
    }
}

void describe(uintptr_t address, const char *who) {
    Guard guard(state().lock);
    const Block *const block = find(address, true);
    char text[256];
    int length = 0;
    if (block != nullptr && block->mapping != nullptr) {
        length = snprintf(text, sizeof text, "simcuda: %s touched %s of %zu bytes on device %d\n", who,
                          find(address, false) != nullptr ? "device memory, an allocation"
                                                          : "what lies behind device memory, an allocation",
                          block->allocation.bytes, block->allocation.device);
    }
    for (const auto &freed : state().freed) {
        if (address - reinterpret_cast<uintptr_t>(freed.first) < freed.second) {
            length = snprintf(text, sizeof text, "simcuda: %s touched device memory that was freed\n", who);
        }
    }
    if (length > 0 && write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) {
        return; /* nobody listens */
    }
}

/* Returning without a change repeats the fault, which then goes where it would have gone without us. */
void on_fault(int, siginfo_t *info, void *) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    const bool is_worker = opened.is_worker;
    if (is_worker && open_undeclared(address)) {
        return;
    }
    describe(address, is_worker ? opened.operation : "the host");
    sigaction(SIGSEGV, &state().before, nullptr);
}

void release_oldest() {
    while (state().freed.size() > freed_max) {
        munmap(state().freed.front().first, state().freed.front().second);
        state().freed.pop_front();
    }
}

void destroy_block(Block &block) {
    history_forget(block.allocation.start, block.allocation.bytes);
    if (block.mapping == nullptr) {
        free(block.allocation.start);
        return;
    }
    protect(block, PROT_NONE);
    madvise(block.mapping, block.mapping_bytes, MADV_DONTNEED);
    state().freed.push_back({block.mapping, block.mapping_bytes});
    release_oldest();
}

} // namespace

cudaError_t memory_create_device(void **start, size_t bytes, int device) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t room = round_up(std::max(bytes, size_t{1}), alignment);
    const size_t mapped = round_up(room, page);
    void *const mapping =
        mmap(nullptr, mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return cudaErrorMemoryAllocation;
    }
    memset(mapping, poison_byte, mapped);
    mprotect(mapping, mapped + page, PROT_NONE);

    /* At the end of its pages, so that what is behind it faults. */
    char *const first = static_cast<char *>(mapping) + mapped - room;
    Guard guard(state().lock);
    handle_faults();
    state().blocks[reinterpret_cast<uintptr_t>(first)] = {
        {cudaMemoryTypeDevice, device, first, bytes}, static_cast<char *>(mapping), mapped + page, 0};
    history_forget(first, bytes);
    *start = first;
    return cudaSuccess;
}

cudaError_t memory_create_host(void **start, size_t bytes, int device) {
    void *const first = aligned_alloc(alignment, round_up(std::max(bytes, size_t{1}), alignment));
    if (first == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    memset(first, poison_byte, bytes);
    Guard guard(state().lock);
    state().blocks[reinterpret_cast<uintptr_t>(first)] = {
        {cudaMemoryTypeHost, device, static_cast<char *>(first), bytes}, nullptr, bytes, 0};
    history_forget(first, bytes);
    *start = first;
    return cudaSuccess;
}

cudaError_t memory_destroy(void *start, cudaMemoryType type) {
    Guard guard(state().lock);
    const auto found = state().blocks.find(reinterpret_cast<uintptr_t>(start));
    if (found == state().blocks.end() || found->second.allocation.type != type) {
        return cudaErrorInvalidValue;
    }
    destroy_block(found->second);
    state().blocks.erase(found);
    return cudaSuccess;
}

bool memory_find(const void *address, Allocation *allocation) {
    Guard guard(state().lock);
    const Block *const block = find(reinterpret_cast<uintptr_t>(address), false);
    if (block != nullptr) {
        *allocation = block->allocation;
    }
    return block != nullptr;
}

bool memory_is_sound(const void *start, size_t bytes, bool has_to_be_device, const char *call, const char *which) {
    Allocation allocation;
    const bool is_device = memory_find(start, &allocation) && allocation.type == cudaMemoryTypeDevice;
    if (is_device != has_to_be_device) {
        report_add(SIMCUDA_WRONG_MEMORY, {"", ""}, {call, which},
                   std::string(call) + ": its " + which + " is " + (is_device ? "" : "no ") + "device memory");
        return false;
    }
    if (is_device && static_cast<const char *>(start) + bytes > allocation.start + allocation.bytes) {
        report_add(SIMCUDA_WRONG_MEMORY, {"", ""}, {call, which},
                   std::string(call) + ": its " + which + " ends behind its allocation of " +
                       std::to_string(allocation.bytes) + " bytes");
        return false;
    }
    return true;
}

void memory_open(const std::vector<Access> &accesses, const char *operation, const std::string &stream) {
    Guard guard(state().lock);
    handle_faults();
    opened = {true, operation, &stream, new std::vector<uintptr_t>, {}, 0};
    for (const Access &access : accesses) {
        Block *const block = access.bytes > 0 ? find(reinterpret_cast<uintptr_t>(access.start), false) : nullptr;
        if (block != nullptr) {
            open_declared(*block);
        }
    }
}

void memory_close() {
    Guard guard(state().lock);
    auto &blocks = state().blocks;
    for (const uintptr_t start : *opened.blocks) {
        const auto found = blocks.find(start);
        if (found != blocks.end()) {
            close_block(found->second);
        }
    }
    for (unsigned i = 0; i < opened.undeclared_count; i++) {
        const auto found = blocks.find(opened.undeclared[i]);
        if (found != blocks.end()) {
            report_undeclared(found->second);
            close_block(found->second);
        }
    }
    delete opened.blocks;
    opened = {};
}

} // namespace simcuda

using namespace simcuda;

extern "C" uint64_t simcuda_allocations(void) {
    Guard guard(state().lock);
    return state().blocks.size();
}
