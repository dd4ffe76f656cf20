/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gloo's all-reduces on the CPU, over TCP on the loopback interface: what PyTorch uses there. This file is C++ because
 * gloo is. Each algorithm is a peer of its own, with connections and an event thread of its own.
 */
#include "perf_peer.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace {

enum class Kind { ring, ring_chunked, halving_doubling, bcube };

struct Use {
    int world = 0;
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::unique_ptr<gloo::Algorithm> algorithm; /* of the row that has been started; newer algorithms need none */
    std::string description;
};

const std::chrono::milliseconds timeout(60000);

/* Kept for the caller, who has no place for it. */
const char *keep(const std::string &problem) {
    static thread_local std::string kept;
    kept = problem;
    return kept.c_str();
}

/* Nothing is thrown through the C that calls us. */
template <typename Function> const char *guarded(Function function) {
    try {
        function();
        return nullptr;
    } catch (const std::exception &error) {
        return keep(error.what());
    }
}

void check(gsync_status status) {
    if (status != GSYNC_OK) {
        throw std::runtime_error(gsync_last_error());
    }
}

/* ---- Finding each other ------------------------------------------------------------------------------------------ */

/* A directory that all ranks use, which rank 0 makes and removes. */
class MeetingPlace {
  public:
    explicit MeetingPlace(const perf_peer_ranks &ranks) : is_owner(ranks.rank == 0) {
        if (is_owner) {
            const char *temporary = getenv("TMPDIR");
            const std::string pattern =
                std::string(temporary != nullptr ? temporary : "/tmp") + "/allreduce_perf.XXXXXX";
            if (pattern.size() < sizeof path) {
                pattern.copy(path, pattern.size());
                if (mkdtemp(path) == nullptr) {
                    path[0] = '\0';
                }
            }
        }
        check(gsync_broadcast(ranks.comm, path, sizeof path, GSYNC_UINT8, 0));
        if (path[0] == '\0') {
            throw std::runtime_error("no directory for temporary files; TMPDIR may name one");
        }
    }

    ~MeetingPlace() {
        DIR *directory = is_owner && path[0] != '\0' ? opendir(path) : nullptr;
        if (directory == nullptr) {
            return;
        }
        while (const struct dirent *entry = readdir(directory)) {
            unlink((std::string(path) + "/" + entry->d_name).c_str());
        }
        closedir(directory);
        rmdir(path);
    }

    MeetingPlace(const MeetingPlace &) = delete;
    MeetingPlace &operator=(const MeetingPlace &) = delete;

    std::string name() const {
        return path;
    }

  private:
    bool is_owner;
    char path[PATH_MAX] = "";
};

std::shared_ptr<gloo::rendezvous::Context> connect(const perf_peer_ranks &ranks) {
    const MeetingPlace place(ranks);
    gloo::rendezvous::FileStore store(place.name());
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    attributes.ai_family = AF_INET;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(ranks.rank, ranks.world);
    context->setTimeout(timeout);
    context->connectFullMesh(store, device);
    check(gsync_barrier(ranks.comm)); /* nobody reads in the directory any more */
    return context;
}

/* Linux's pacing ones slow the loopback interface down too, so that a result should say which it was. */
std::string congestion_control() {
    std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
    std::string name;
    return file >> name ? name : "unknown";
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

template <typename Element> std::unique_ptr<gloo::Algorithm> make(Kind kind, const Use &use, void *buffer, int count) {
    const std::vector<Element *> buffers{static_cast<Element *>(buffer)};
    if (kind == Kind::ring_chunked) {
        return std::unique_ptr<gloo::Algorithm>(new gloo::AllreduceRingChunked<Element>(use.context, buffers, count));
    }
    return std::unique_ptr<gloo::Algorithm>(new gloo::AllreduceHalvingDoubling<Element>(use.context, buffers, count));
}

template <typename Element> void add(void *result, const void *left, const void *right, size_t count) {
    gloo::sum<Element>(result, left, right, count);
}

template <typename Element> void run(Kind kind, const Use &use, void *buffer, size_t count) {
    using Options = gloo::AllreduceOptions;
    Options options(use.context);
    options.setOutput(static_cast<Element *>(buffer), count);
    options.setAlgorithm(kind == Kind::ring ? Options::Algorithm::RING : Options::Algorithm::BCUBE);
    options.setReduceFunction(add<Element>);
    gloo::allreduce(options);
}

/* ---- The peers ----------------------------------------------------------------------------------------------------
 */

const char *open_peer(const perf_peer_ranks *ranks, void **state) {
    return guarded([&] {
        if (!ranks->is_one_host) {
            throw std::runtime_error("is measured on the loopback interface, and the ranks are not on one host");
        }
        std::unique_ptr<Use> use(new Use);
        use->world = ranks->world;
        use->context = connect(*ranks);
        use->description = "gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
                           "." + std::to_string(GLOO_VERSION_PATCH) +
                           ", tcp on lo, congestion control: " + congestion_control();
        *state = use.release();
    });
}

void close_peer(void *state) {
    delete static_cast<Use *>(state);
}

const char *describe(const void *state) {
    return static_cast<const Use *>(state)->description.c_str();
}

/* The older algorithms count in int. */
bool takes(const void *state, gsync_dtype dtype, size_t count) {
    const Use *use = static_cast<const Use *>(state);
    return (dtype == GSYNC_FLOAT32 || dtype == GSYNC_FLOAT64) && count >= static_cast<size_t>(use->world) &&
           count <= INT_MAX;
}

template <Kind kind> const char *start(void *state, gsync_dtype dtype, size_t count, void **buffer) {
    return guarded([&] {
        Use *use = static_cast<Use *>(state);
        if (kind == Kind::ring_chunked || kind == Kind::halving_doubling) {
            use->algorithm = dtype == GSYNC_FLOAT64 ? make<double>(kind, *use, *buffer, static_cast<int>(count))
                                                    : make<float>(kind, *use, *buffer, static_cast<int>(count));
        }
    });
}

template <Kind kind> const char *sum(void *state, gsync_dtype dtype, size_t count, void *buffer) {
    return guarded([&] {
        Use *use = static_cast<Use *>(state);
        if (use->algorithm) {
            use->algorithm->run();
        } else if (dtype == GSYNC_FLOAT64) {
            run<double>(kind, *use, buffer, count);
        } else {
            run<float>(kind, *use, buffer, count);
        }
    });
}

void stop(void *state) {
    static_cast<Use *>(state)->algorithm.reset();
}

template <Kind kind> perf_peer peer(const char *name) {
    return perf_peer{name, false, false, false, open_peer, close_peer, describe, takes, start<kind>, sum<kind>, stop};
}

} // namespace

const perf_peer perf_peer_gloo_ring = peer<Kind::ring>("gloo-ring");
const perf_peer perf_peer_gloo_ring_chunked = peer<Kind::ring_chunked>("gloo-ring-chunked");
const perf_peer perf_peer_gloo_halving_doubling = peer<Kind::halving_doubling>("gloo-halving-doubling");
const perf_peer perf_peer_gloo_bcube = peer<Kind::bcube>("gloo-bcube");
