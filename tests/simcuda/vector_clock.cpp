/* SPDX-License-Identifier: Apache-2.0 */
#include "vector_clock.h"

#include "control.h"
#include "invisible.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace simcuda {

Time VectorClock::of(Actor actor) const {
    return actor < times_.size() ? times_[actor] : 0;
}

void VectorClock::tick(Actor actor) {
    set(actor, of(actor) + 1);
}

void VectorClock::set(Actor actor, Time time) {
    if (actor >= times_.size()) {
        times_.resize(actor + 1, 0);
    }
    times_[actor] = time;
}

void VectorClock::join(const VectorClock &other) {
    if (other.times_.size() > times_.size()) {
        times_.resize(other.times_.size(), 0);
    }
    for (size_t i = 0; i < other.times_.size(); i++) {
        times_[i] = std::max(times_[i], other.times_[i]);
    }
}

namespace {

struct Past {
    Actor actor;
    Time time;
    const char *name;
};

/* Bytes that were last used together: the last write, and the reads since, one per actor. */
struct Cell {
    uintptr_t end;
    bool was_written;
    Past write;
    std::vector<Past> reads;
};

/* Never destroyed: workers outlive main. */
struct State {
    Lock lock;
    std::vector<std::string> names{"host"};
    std::deque<std::pair<Actor, Time>> free;
    std::set<std::string> interned;
    std::map<uintptr_t, Cell> cells; /* by their start; they do not overlap */
};

State &state() {
    static State *const state = new State;
    return *state;
}

/* Makes `address` a border between cells. */
void split(std::map<uintptr_t, Cell> &cells, uintptr_t address) {
    auto after = cells.upper_bound(address);
    if (after == cells.begin()) {
        return;
    }
    auto cell = std::prev(after);
    if (cell->first < address && address < cell->second.end) {
        cells.emplace(address, cell->second);
        cell->second.end = address;
    }
}

bool is_ordered(const Past &past, Actor actor, const VectorClock &clock) {
    return past.actor == actor || past.time <= clock.of(past.actor);
}

std::string missing_edge(const std::string &first, const Past &past, const std::string &second, Actor actor,
                         const char *name) {
    if (past.actor == host_actor) {
        return "the host did this after it had enqueued the other, and has to wait for it first";
    }
    if (actor == host_actor) {
        return "the host has to synchronise with an event recorded on " + first + " after \"" + past.name + "\"";
    }
    return "an event has to be recorded on " + first + " after \"" + past.name + "\", and " + second +
           " has to wait for it before \"" + name + "\"";
}

struct Found {
    Past past;
    bool past_writes;
    uintptr_t start;
    size_t bytes;
};

void report(const Found &found, bool writes, Actor actor, const char *name) {
    const std::string first = state().names[found.past.actor];
    const std::string second = state().names[actor];
    report_add(SIMCUDA_RACE, {found.past.name, first}, {name, second},
               "race on " + std::to_string(found.bytes) + " bytes: \"" + name + "\" on " + second +
                   (writes ? " writes" : " reads") + " what \"" + found.past.name + "\" on " + first +
                   (found.past_writes ? " writes" : " reads") +
                   ", and nothing orders them: " + missing_edge(first, found.past, second, actor, name));
}

void compare(const Cell &cell, uintptr_t start, bool writes, Actor actor, const VectorClock &clock,
             std::vector<Found> &found) {
    if (cell.was_written && !is_ordered(cell.write, actor, clock)) {
        found.push_back({cell.write, true, start, cell.end - start});
    }
    if (!writes) {
        return;
    }
    for (const Past &read : cell.reads) {
        if (!is_ordered(read, actor, clock)) {
            found.push_back({read, false, start, cell.end - start});
        }
    }
}

void remember_read(Cell &cell, const Past &now) {
    for (Past &read : cell.reads) {
        if (read.actor == now.actor) {
            read = now;
            return;
        }
    }
    cell.reads.push_back(now);
}

/* The cells of the access and, for what was never used, new ones. */
void remember_reads(std::map<uintptr_t, Cell> &cells, uintptr_t start, uintptr_t end, const Past &now) {
    uintptr_t at = start;
    for (auto cell = cells.lower_bound(start); cell != cells.end() && cell->first < end; ++cell) {
        if (at < cell->first) {
            cells.emplace(at, Cell{cell->first, false, now, {now}});
        }
        remember_read(cell->second, now);
        at = cell->second.end;
    }
    if (at < end) {
        cells.emplace(at, Cell{end, false, now, {now}});
    }
}

void erase(std::map<uintptr_t, Cell> &cells, uintptr_t start, uintptr_t end) {
    split(cells, start);
    split(cells, end);
    cells.erase(cells.lower_bound(start), cells.lower_bound(end));
}

} // namespace

void history_check(const Access &access, Actor actor, const VectorClock &clock, const char *name) {
    if (access.bytes == 0) {
        return;
    }
    Guard guard(state().lock);
    auto &cells = state().cells;
    const uintptr_t start = reinterpret_cast<uintptr_t>(access.start);
    const uintptr_t end = start + access.bytes;
    const Past now = {actor, clock.of(actor), name};

    split(cells, start);
    split(cells, end);
    std::vector<Found> found;
    for (auto cell = cells.lower_bound(start); cell != cells.end() && cell->first < end; ++cell) {
        compare(cell->second, cell->first, access.is_write, actor, clock, found);
    }
    for (const Found &one : found) {
        report(one, access.is_write, actor, name);
    }
    if (access.is_write) {
        erase(cells, start, end);
        cells.emplace(start, Cell{end, true, now, {}});
    } else {
        remember_reads(cells, start, end, now);
    }
}

void history_forget(const void *start, size_t bytes) {
    Guard guard(state().lock);
    const uintptr_t first = reinterpret_cast<uintptr_t>(start);
    erase(state().cells, first, first + bytes);
}

void history_forget_all() {
    Guard guard(state().lock);
    state().cells.clear();
}

Actor actor_create(const std::string &name, VectorClock *clock) {
    Guard guard(state().lock);
    auto &free = state().free;
    if (free.empty()) {
        state().names.push_back(name);
        return static_cast<Actor>(state().names.size() - 1);
    }
    const auto [actor, time] = free.front();
    free.pop_front();
    clock->set(actor, time);
    state().names[actor] = name;
    return actor;
}

void actor_destroy(Actor actor, const VectorClock &clock) {
    Guard guard(state().lock);
    state().free.push_back({actor, clock.of(actor)});
}

void actor_rename(Actor actor, const std::string &name) {
    Guard guard(state().lock);
    state().names[actor] = name;
}

std::string actor_name(Actor actor) {
    Guard guard(state().lock);
    return state().names[actor];
}

const char *intern(const std::string &name) {
    Guard guard(state().lock);
    return state().interned.insert(name).first->c_str();
}

} // namespace simcuda
