/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VECTOR_CLOCK_H
#define VECTOR_CLOCK_H

/*
 * Who has heard of whom. Every stream is an actor; all host threads together are one, because how threads of the host
 * order each other is ThreadSanitizer's business and invisible here. That can hide a race, and never invents one.
 */

#include <cstdint>
#include <string>
#include <vector>

namespace simcuda {

using Actor = uint32_t;
using Time = uint32_t;

constexpr Actor host_actor = 0;

class VectorClock {
  public:
    Time of(Actor actor) const;
    void tick(Actor actor);
    void join(const VectorClock &other);
    void set(Actor actor, Time time);

  private:
    std::vector<Time> times_;
};

/* The number of a destroyed stream is given again, which keeps clocks short. Its time goes on where it was, for others
 * know of it: the clock is set to that. */
Actor actor_create(const std::string &name, VectorClock *clock);
void actor_destroy(Actor actor, const VectorClock &clock);
void actor_rename(Actor actor, const std::string &name);
std::string actor_name(Actor actor);

/* A copy of the name that lives for ever. */
const char *intern(const std::string &name);

struct Access {
    const void *start;
    size_t bytes;
    bool is_write;
};

/* Compares an access with those before, reports what nothing orders, and remembers it. */
void history_check(const Access &access, Actor actor, const VectorClock &clock, const char *name);
/* The memory is given back, or is new. */
void history_forget(const void *start, size_t bytes);
void history_forget_all();

} // namespace simcuda

#endif
